//! The figures of a load, as text and as JSON.

use crate::tally::Tally;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// The measured time.
    pub took: Duration,
    /// Requests, misses, latencies.
    pub tally: Tally,
    /// Processor time of all threads of the server; `None` if its process is not known.
    pub server_cpu: Option<Duration>,
    /// Resident memory of the server at the end, in bytes; `None` if its process is not known.
    pub server_resident_bytes: Option<u64>,
    /// Processor time of the load generator.
    pub load_cpu: Duration,
}

impl Report {
    /// One object: counts, seconds, microseconds, shares of one core. The server's figures are null if its process is
    /// not known.
    pub fn json(&self) -> Value {
        json!({
            "requests": self.tally.requests,
            "keys": self.tally.keys,
            "misses": self.tally.misses,
            "udp_lost": self.tally.lost,
            "seconds": self.took.as_secs_f64(),
            "requests_per_s": self.requests_per_s(),
            "p50_us": self.latency_us(0.5),
            "p90_us": self.latency_us(0.9),
            "p99_us": self.latency_us(0.99),
            "p999_us": self.latency_us(0.999),
            "max_us": self.latency_us(1.0),
            "server_cpu_us_per_request": self.server_cpu.map(|cpu| self.us_per_request(cpu)),
            "server_cpu_share": self.server_cpu.map(|cpu| self.share(cpu)),
            "server_resident_bytes": self.server_resident_bytes,
            "load_cpu_us_per_request": self.us_per_request(self.load_cpu),
            "load_cpu_share": self.share(self.load_cpu),
        })
    }

    fn requests_per_s(&self) -> f64 {
        self.tally.requests as f64 / self.took.as_secs_f64()
    }

    fn latency_us(&self, quantile: f64) -> f64 {
        self.tally.latency_ns.value_at_quantile(quantile) as f64 / 1_000.0
    }

    fn us_per_request(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / self.tally.requests.max(1) as f64
    }

    fn share(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() / self.took.as_secs_f64()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { requests, keys, misses, lost, .. } = &self.tally;
        writeln!(
            f,
            "requests    {requests:>12}   {:.0} per second for {:.3} s",
            self.requests_per_s(),
            self.took.as_secs_f64()
        )?;
        writeln!(f, "keys        {keys:>12}   {misses} misses")?;
        if *lost > 0 {
            writeln!(f, "lost by UDP {lost:>12}")?;
        }
        let [p50, p90, p99, p999, max] = [0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| self.latency_us(quantile));
        writeln!(
            f,
            "latency     {p50:>12.1} us p50   {p90:.1} us p90   {p99:.1} us p99   {p999:.1} us p99.9   {max:.1} us max"
        )?;
        if let Some(cpu) = self.server_cpu {
            writeln!(
                f,
                "server CPU  {:>12.3} us per request   {:.2} of a core",
                self.us_per_request(cpu),
                self.share(cpu)
            )?;
        }
        if let Some(bytes) = self.server_resident_bytes {
            writeln!(f, "server RSS  {:>12.1} MiB", bytes as f64 / f64::from(1 << 20))?;
        }
        write!(
            f,
            "load CPU    {:>12.3} us per request   {:.2} of a core",
            self.us_per_request(self.load_cpu),
            self.share(self.load_cpu)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outstanding::Answered;

    #[test]
    fn figures_are_per_request_and_per_second_of_the_window() {
        let mut tally = Tally::default();
        for latency_us in 1..=1_000 {
            tally.record(Answered { since_ns: 5_000, keys: 2, misses: 1 }, 5_000 + latency_us * 1_000);
        }
        let report = Report {
            took: Duration::from_secs(2),
            tally,
            server_cpu: Some(Duration::from_millis(1_500)),
            server_resident_bytes: Some(1 << 20),
            load_cpu: Duration::from_millis(500),
        };
        let figures = report.json();
        let counts = ["requests", "keys", "misses", "udp_lost"].map(|name| figures[name].as_u64().unwrap());
        assert_eq!(counts, [1_000, 2_000, 1_000, 0]);
        let close = |name: &str, expected: f64| {
            let found = figures[name].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() < 0.002, "{name} is {found}, not {expected}");
        };
        close("requests_per_s", 500.0);
        close("p50_us", 500.0);
        close("p99_us", 990.0);
        close("max_us", 1_000.0);
        close("server_cpu_us_per_request", 1_500.0);
        close("server_cpu_share", 0.75);
        close("load_cpu_us_per_request", 500.0);
        close("load_cpu_share", 0.25);
        let text = report.to_string();
        assert!(text.contains("1500.000 us per request   0.75 of a core"), "{text}");
    }
}
