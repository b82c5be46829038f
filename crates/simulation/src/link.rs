//! The delays of writes on simulated links, drawn from a seed.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// How a link behaves.
#[derive(Clone, Copy, Debug)]
pub struct LinkModel {
    /// The shortest delay of a write, in microseconds.
    pub delay_us_min: u64,
    /// The longest delay of most writes, in microseconds.
    pub delay_us_max: u64,
    /// One write in this many is late, by up to [`LinkModel::late_us_max`]; 0 for none.
    pub late_one_in: u32,
    /// The longest delay of a late write, in microseconds.
    pub late_us_max: u64,
}

/// Draws delays. Clones share the random numbers.
#[derive(Clone)]
pub(crate) struct LinkDelays {
    model: LinkModel,
    rng: Arc<Mutex<fastrand::Rng>>,
}

impl LinkDelays {
    pub fn new(seed: u64, model: LinkModel) -> LinkDelays {
        LinkDelays { model, rng: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))) }
    }

    /// The delay of the next write.
    pub fn draw(&self) -> Duration {
        let mut rng = self.rng();
        let is_late = self.model.late_one_in > 0 && rng.u32(0..self.model.late_one_in) == 0;
        let longest_us = if is_late { self.model.late_us_max } else { self.model.delay_us_max };
        Duration::from_micros(rng.u64(self.model.delay_us_min..=longest_us.max(self.model.delay_us_min)))
    }

    /// The random numbers of the network.
    pub fn rng(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.rng.lock().expect("one thread runs a simulation")
    }
}
