//! The link by which a replica follows its master: what is sent to the replica arrives after a delay, or waits while
//! the link is cut. A file has the present state, so that a shell can change it:
//!
//! ```text
//! echo cut   > DIR/west.link
//! echo 500ms > DIR/west.link
//! ```

use anyhow::{Context, Result};
use std::{fmt, fs, io, path::PathBuf, str::FromStr, time::Duration};
use tokio::{sync::watch, time::Instant};

/// How often the file is read.
const CONTROL_INTERVAL: Duration = Duration::from_millis(50);
/// More is refused: what has been sent and has not arrived is in memory.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// What a link does with what is sent to the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It arrives this long after it was sent.
    Delayed(Duration),
    /// It waits until the link is restored.
    Cut,
}

impl FromStr for LinkState {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkState, String> {
        match text.trim() {
            "cut" => Ok(LinkState::Cut),
            delay => parse_delay(delay).map(LinkState::Delayed).map_err(|error| format!("{error}, or `cut`")),
        }
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkState::Cut => f.write_str("cut"),
            LinkState::Delayed(delay) => write!(f, "{}ms", delay.as_millis()),
        }
    }
}

/// Parses a delay: `0`, `500ms` or `2s`, up to 60 s.
pub fn parse_delay(text: &str) -> Result<Duration, String> {
    let parsed = match text.strip_suffix("ms") {
        Some(ms) => ms.parse().ok().map(Duration::from_millis),
        None => match text.strip_suffix('s') {
            Some(s) => s.parse().ok().map(Duration::from_secs),
            None => (text == "0").then_some(Duration::ZERO),
        },
    };
    parsed
        .filter(|delay| *delay <= DELAY_MAX)
        .ok_or_else(|| format!("{text:?} is not a delay; expected one such as 500ms or 2s, up to {DELAY_MAX:?}"))
}

/// The side of a link that follows its file.
pub struct LinkControl {
    path: PathBuf,
    state: watch::Sender<LinkState>,
}

/// The side of a link that obeys.
#[derive(Clone)]
pub struct LinkReceiver(watch::Receiver<LinkState>);

impl LinkControl {
    /// A link without a delay, with its file at `path`.
    pub fn create(path: PathBuf) -> Result<LinkControl> {
        let control = LinkControl { path, state: watch::Sender::new(LinkState::Delayed(Duration::ZERO)) };
        control.set(LinkState::Delayed(Duration::ZERO))?;
        Ok(control)
    }

    /// What forwards over this link.
    pub fn receiver(&self) -> LinkReceiver {
        LinkReceiver(self.state.subscribe())
    }

    /// The file.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Changes the state, and the file.
    pub fn set(&self, state: LinkState) -> Result<()> {
        fs::write(&self.path, format!("{state}\n")).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.state.send_replace(state);
        Ok(())
    }

    /// Follows the file, and reports each change of the state, and each text that is none, to `report`.
    pub async fn run(self: std::sync::Arc<Self>, report: impl Fn(String)) {
        let mut last = String::new();
        loop {
            tokio::time::sleep(CONTROL_INTERVAL).await;
            let text = fs::read_to_string(&self.path).unwrap_or_else(|error| unreadable(&error));
            // A shell truncates the file before it writes.
            if text == last || text.is_empty() {
                continue;
            }
            match text.parse::<LinkState>() {
                Ok(state) if state != *self.state.borrow() => {
                    self.state.send_replace(state);
                    report(format!("the link is now: {state}"));
                }
                Ok(_) => {}
                Err(error) => report(format!("{}: {error}; the link stays as it is", self.path.display())),
            }
            last = text;
        }
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("unreadable: {error}")
}

impl LinkReceiver {
    /// The present state.
    pub fn state(&self) -> LinkState {
        *self.0.borrow()
    }

    /// Returns when what was sent at `sent_at` may arrive.
    pub async fn wait_for_arrival(&mut self, sent_at: Instant) {
        self.wait_until(|delay| sent_at + delay).await;
    }

    /// Returns when the link is not cut.
    pub async fn wait_until_restored(&mut self) {
        self.wait_until(|_| Instant::now()).await;
    }

    async fn wait_until(&mut self, due: impl Fn(Duration) -> Instant) {
        loop {
            let state = *self.0.borrow_and_update();
            let wait = async {
                match state {
                    LinkState::Delayed(delay) => tokio::time::sleep_until(due(delay)).await,
                    LinkState::Cut => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = wait => return,
                changed = self.0.changed() => if changed.is_err() { return },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_written_as_they_are_read() {
        for (text, state) in [
            ("cut\n", LinkState::Cut),
            ("0", LinkState::Delayed(Duration::ZERO)),
            ("500ms", LinkState::Delayed(Duration::from_millis(500))),
            ("2s\n", LinkState::Delayed(Duration::from_secs(2))),
        ] {
            assert_eq!(text.parse::<LinkState>(), Ok(state));
            assert_eq!(state.to_string().parse::<LinkState>(), Ok(state));
        }
        for text in ["", "5", "-1s", "61s", "1.5s", "ms", "down"] {
            let error = text.parse::<LinkState>().unwrap_err();
            assert!(error.contains("500ms") && error.contains("cut"), "{error}");
        }
    }
}
