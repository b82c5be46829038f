//! How a window is set up.

/// What makes a window grow and shrink. Either way it is halved when a request goes unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowControl {
    /// It grows by one request for each window that is answered, as the paper's. Replies that TCP sends again are late
    /// and not lost, so that it grows far beyond what the network can take.
    Loss,
    /// It stays where replies take about twice as long as with few requests outstanding.
    Delay,
}

/// The bounds of a [`Window`](super::Window), and how long callers wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSettings {
    /// The initial size, in requests. Default 100.
    pub initial: usize,
    /// It never shrinks below this, in requests. Default 10. With `max` the same, the window is fixed.
    pub min: usize,
    /// It never grows beyond this, in requests. Default 10,000.
    pub max: usize,
    /// Requests that may wait for the window; one more is refused. Default 100,000.
    pub waiting_requests_max: usize,
    /// How long after a batch came any part of it may be sent, in milliseconds. Default 1,000.
    pub wait_ms_max: u64,
    /// What makes it grow and shrink. Default by loss.
    pub control: WindowControl,
}

impl Default for WindowSettings {
    fn default() -> Self {
        WindowSettings {
            initial: 100,
            min: 10,
            max: 10_000,
            waiting_requests_max: 100_000,
            wait_ms_max: 1_000,
            control: WindowControl::Loss,
        }
    }
}

impl WindowSettings {
    /// A window that finds its size by the delay of replies, from 100 requests on, and at least 4: as many clients as
    /// share a link share its queue.
    pub fn by_delay() -> WindowSettings {
        WindowSettings { min: 4, control: WindowControl::Delay, ..WindowSettings::default() }
    }

    /// A window that always has this size, in requests.
    pub fn fixed(size: usize) -> WindowSettings {
        WindowSettings { initial: size, min: size, max: size, ..WindowSettings::default() }
    }
}
