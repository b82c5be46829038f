//! The network between regions, for requests to a database of another region: packets are late, overtake each other, or
//! are lost, so that a client may not know whether its transaction has been committed.

use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// How long a client waits for a database of another region.
const TIMEOUT: Duration = Duration::from_millis(500);
/// A request may be executed this long after it was sent, even if its client has given up.
pub(super) const LATE_MAX: Duration = Duration::from_secs(2);
/// One packet in this many is lost.
const LOST_ONE_IN: u8 = 30;
/// One packet in this many is late, by up to [`PACKET_LATE_MS_MAX`].
const LATE_ONE_IN: u8 = 10;
const DELAY_MS: std::ops::RangeInclusive<u64> = 2..=40;
const PACKET_LATE_MS_MAX: u64 = 700;

/// The database has not answered in time. Whether it has executed the request is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoAnswer;

/// The delays of a request and of its answer; `None` if the packet is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    request: Option<Duration>,
    answer: Option<Duration>,
}

impl RoundTrip {
    pub(super) fn random(rng: &mut fastrand::Rng) -> RoundTrip {
        RoundTrip { request: random_delay(rng), answer: random_delay(rng) }
    }

    /// Has a database of another region execute `request`.
    pub(super) async fn execute<T: Send + 'static>(
        self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let deadline = Instant::now() + TIMEOUT;
        let executed = tokio::spawn(async move {
            sleep(self.request?).await;
            let answer = request.await;
            sleep(self.answer?).await;
            Some(answer)
        });
        match timeout_at(deadline, executed).await {
            Ok(Ok(Some(answer))) => Ok(answer),
            Ok(Err(error)) => panic!("a request to a database has failed: {error}"),
            Ok(Ok(None)) | Err(_) => {
                sleep_until(deadline).await;
                Err(NoAnswer)
            }
        }
    }
}

fn random_delay(rng: &mut fastrand::Rng) -> Option<Duration> {
    let late_ms = if rng.u8(0..LATE_ONE_IN) == 0 { rng.u64(0..=PACKET_LATE_MS_MAX) } else { 0 };
    let delay_ms = rng.u64(DELAY_MS) + late_ms;
    (rng.u8(0..LOST_ONE_IN) > 0).then(|| Duration::from_millis(delay_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    #[tokio::test(start_paused = true)]
    async fn a_request_may_be_executed_although_its_client_has_no_answer() {
        let executed = Arc::new(AtomicUsize::new(0));
        let ms = |ms| Some(Duration::from_millis(ms));
        let execute = async |request, answer| {
            let executed = executed.clone();
            RoundTrip { request, answer }.execute(async move { executed.fetch_add(1, Relaxed) }).await
        };
        assert_eq!(execute(ms(1), ms(1)).await, Ok(0));
        assert_eq!(execute(None, ms(1)).await, Err(NoAnswer));
        assert_eq!(executed.load(Relaxed), 1);
        let begun = Instant::now();
        assert_eq!(execute(ms(1), None).await, Err(NoAnswer));
        assert_eq!((executed.load(Relaxed), begun.elapsed()), (2, TIMEOUT));
        assert_eq!(execute(ms(700), ms(1)).await, Err(NoAnswer));
        assert_eq!(executed.load(Relaxed), 2);
        sleep(LATE_MAX).await;
        assert_eq!(executed.load(Relaxed), 3, "late");
    }
}
