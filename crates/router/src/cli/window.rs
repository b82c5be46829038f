//! The option of the window over all that a thread has outstanding.

use lookaside_client::WindowSettings;
use std::str::FromStr;

/// The value of `--window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowOption {
    /// No window.
    Off,
    /// A window that finds its size by the delay of replies.
    Adaptive,
    /// A window that shrinks only when a request goes unanswered, as the paper's.
    Loss,
    /// A window of this size, in requests.
    Fixed(u32),
}

impl WindowOption {
    /// The window's settings; `None` without one.
    pub fn settings(self) -> Option<WindowSettings> {
        match self {
            WindowOption::Off => None,
            WindowOption::Adaptive => Some(WindowSettings::by_delay()),
            WindowOption::Loss => Some(WindowSettings::default()),
            WindowOption::Fixed(size) => Some(WindowSettings::fixed(size as usize)),
        }
    }
}

impl FromStr for WindowOption {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(WindowOption::Off),
            "adaptive" => Ok(WindowOption::Adaptive),
            "loss" => Ok(WindowOption::Loss),
            number => match number.parse() {
                Ok(size) if size > 0 => Ok(WindowOption::Fixed(size)),
                _ => Err("expected off, adaptive, loss, or a number of requests above 0"),
            },
        }
    }
}
