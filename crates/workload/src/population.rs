//! The objects behind the ranks of a popularity: every rank has its object for a number of requests, then a new one.
//! Ranks change at different times.

use crate::sizes::{Sizes, quantile};
use fastrand::Rng;

/// The objects of some ranks over time, and their sizes.
pub(crate) struct Population {
    /// The object of each rank, once it was requested; and one for all objects that are not read.
    objects: Vec<Option<u32>>,
    /// The request at which each rank gets a new object.
    changes_at: Vec<usize>,
    lifetime_requests: usize,
    points: [f64; 8],
    key_bytes: usize,
    object_bytes: Vec<u32>,
}

impl Population {
    /// `ranks` ranks whose objects last for `lifetime_requests`.
    pub(crate) fn new(
        ranks: usize,
        lifetime_requests: usize,
        sizes: &Sizes,
        key_bytes: usize,
        rng: &mut Rng,
    ) -> Population {
        let changes_at = (0..=ranks).map(|_| rng.usize(..lifetime_requests)).collect();
        let (objects, points) = (vec![None; ranks + 1], sizes.points());
        Population { objects, changes_at, lifetime_requests, points, key_bytes, object_bytes: Vec::new() }
    }

    /// The rank of objects that are not read.
    pub(crate) fn unread_rank(&self) -> usize {
        self.objects.len() - 1
    }

    /// The object of the rank at request number `index`.
    pub(crate) fn object(&mut self, rank: usize, index: usize, rng: &mut Rng) -> u32 {
        while self.changes_at[rank] <= index {
            self.changes_at[rank] += self.lifetime_requests;
            self.objects[rank] = None;
        }
        if let Some(object) = self.objects[rank] {
            return object;
        }
        let object = self.new_object(rng);
        self.objects[rank] = Some(object);
        object
    }

    /// An object that no rank has.
    pub(crate) fn new_object(&mut self, rng: &mut Rng) -> u32 {
        let value_bytes = quantile(&self.points, rng.f64());
        self.object_bytes.push(value_bytes.round() as u32 + self.key_bytes as u32);
        self.object_bytes.len() as u32 - 1
    }

    /// The sizes of all objects, keys included.
    pub(crate) fn into_object_bytes(self) -> Vec<u32> {
        self.object_bytes
    }
}
