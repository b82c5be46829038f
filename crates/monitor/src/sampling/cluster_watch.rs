//! The samples of one cluster: which are to be asked about next, and what was found.
//!
//! ```text
//! sample -> first look (at once) -> look at 1 s -> 10 s -> 1 min -> 10 min -> 1 h -> gone
//! ```
//!
//! A sample is asked about at every age, also when its value was gone before: a server that was replaced by the gutter
//! may come back with the old value. All samples have the same ages, so each age has a queue, in the order of commits.

use super::{
    counts::AgeCounts,
    moment::Moment,
    sample::Sample,
    verdict::{Baseline, Look, Verdict, judge},
};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// The first look is of use only so soon after the commit was read.
const FIRST_LOOK_LATE_AFTER: Duration = Duration::from_secs(1);
/// A look at an age of `a` may come up to half of `a` and this time too late, counted from the earliest time at which
/// the commit can have been.
const LATE_AFTER: Duration = Duration::from_secs(2);

/// By how much a look at this age may come too late, counted from the earliest time at which the commit can have been.
pub fn late_after(age: Duration) -> Duration {
    age / 2 + LATE_AFTER
}

/// A sample in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingSample {
    /// The delete.
    pub sample: Arc<Sample>,
    /// What the first look has found, by router or server; empty before it, and without those that did not answer.
    pub baselines: Arc<[Baseline]>,
}

/// What was found about a sample at one age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The delete.
    pub sample: Arc<Sample>,
    /// Its age, in seconds.
    pub age_s: u32,
    /// The verdict that counts for the cluster.
    pub verdict: Verdict,
    /// The answer of each router or server that was asked, with what it means.
    pub looks: Vec<(Verdict, Look)>,
    /// What the first look has found: later answers were compared with it.
    pub baselines: Arc<[Baseline]>,
}

/// A cluster and its samples.
#[derive(Clone, Debug)]
pub struct ClusterWatch {
    /// Its name.
    pub name: String,
    /// The region that it is in.
    pub region: String,
    /// The addresses of its routers; none if its servers are asked.
    routers: Vec<String>,
    ages_s: Arc<[u32]>,
    /// Before the first look, and before the look at each age.
    queues: Vec<VecDeque<PendingSample>>,
    /// By age.
    counts: Vec<AgeCounts>,
}

/// A part of a queue that is due.
#[derive(Debug, PartialEq, Eq)]
pub struct DueBatch {
    /// The queue: 0 for the first look, n for the look at the n-th age.
    pub queue: usize,
    /// From the front of the queue.
    pub samples: Vec<Arc<Sample>>,
}

impl ClusterWatch {
    /// A cluster without samples, to be asked at these ages.
    pub fn new(name: &str, region: &str, ages_s: Arc<[u32]>) -> ClusterWatch {
        let queues = vec![VecDeque::new(); ages_s.len() + 1];
        let counts = vec![AgeCounts::default(); ages_s.len()];
        ClusterWatch { name: name.into(), region: region.into(), routers: Vec::new(), ages_s, queues, counts }
    }

    /// Sets the routers by which it is asked: what one has found at first counts for the others too.
    pub fn set_routers(&mut self, routers: Vec<String>) {
        self.routers = routers;
    }

    /// The number of its samples.
    pub fn pending(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// What was found, with the ages in seconds.
    pub fn counts(&self) -> impl Iterator<Item = (u32, &AgeCounts)> {
        self.ages_s.iter().copied().zip(&self.counts)
    }

    /// The samples with the age of their next look in seconds, 0 for the first.
    pub fn samples(&self) -> impl Iterator<Item = (u32, &PendingSample)> {
        let age_s = |queue: usize| queue.checked_sub(1).map_or(0, |index| self.ages_s[index]);
        let queues = self.queues.iter().enumerate();
        queues.flat_map(move |(queue, samples)| samples.iter().map(move |pending| (age_s(queue), pending)))
    }

    /// Adds a sample, to be looked at for the first time.
    pub fn add(&mut self, sample: Arc<Sample>) {
        self.queues[0].push_back(PendingSample { sample, baselines: Arc::default() });
    }

    /// Adds counts of an earlier process; false if it is no age of this one.
    pub fn restore_counts(&mut self, age_s: u32, counts: AgeCounts) -> bool {
        let Some(index) = self.ages_s.iter().position(|&age| age == age_s) else { return false };
        self.counts[index] = counts;
        true
    }

    /// Adds a sample of an earlier process, in the order in which they were; false if it is no age of this one.
    pub fn restore_sample(&mut self, age_s: u32, pending: PendingSample) -> bool {
        let index = self.ages_s.iter().position(|&age| age == age_s).map(|index| index + 1);
        let Some(queue) = index.or((age_s == 0).then_some(0)) else { return false };
        self.queues[queue].push_back(pending);
        true
    }

    /// When the next look is due; `None` if there is none.
    pub fn next_due_at(&self) -> Option<Moment> {
        (0..self.queues.len()).filter_map(|queue| self.due_at(queue)).min()
    }

    /// When the front of a queue is due.
    fn due_at(&self, queue: usize) -> Option<Moment> {
        Some(self.queues[queue].front()?.sample.read_at + self.age(queue))
    }

    fn age(&self, queue: usize) -> Duration {
        let age_s = queue.checked_sub(1).map_or(0, |index| self.ages_s[index]);
        Duration::from_secs(age_s.into())
    }

    /// Up to `samples_max` samples to ask about now, of one queue: the one that is due for the longest time. Those for
    /// which it is too late are counted and wait for their next age. The caller asks about the batch, and calls
    /// [`ClusterWatch::record`] before it asks for another one.
    pub fn due(&mut self, now: Moment, samples_max: usize) -> Option<DueBatch> {
        self.skip_late(now);
        let due = (0..self.queues.len()).filter_map(|queue| Some((self.due_at(queue)?, queue)));
        let (due_at, queue) = due.min()?;
        if due_at > now {
            return None;
        }
        let age = self.age(queue);
        let is_due = |pending: &&PendingSample| pending.sample.read_at + age <= now;
        let samples = self.queues[queue].iter().take_while(is_due).take(samples_max);
        Some(DueBatch { queue, samples: samples.map(|pending| pending.sample.clone()).collect() })
    }

    fn skip_late(&mut self, now: Moment) {
        for queue in 0..self.queues.len() {
            let age = self.age(queue);
            let is_late = |sample: &Sample| match queue {
                0 => now - sample.read_at > FIRST_LOOK_LATE_AFTER,
                _ => now - sample.earliest() > age + late_after(age),
            };
            while self.queues[queue].front().is_some_and(|pending| is_late(&pending.sample)) {
                let pending = self.queues[queue].pop_front().expect("it is there");
                if queue > 0 {
                    self.counts[queue - 1].late += 1;
                }
                self.enqueue(queue + 1, pending);
            }
        }
    }

    fn enqueue(&mut self, queue: usize, pending: PendingSample) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.push_back(pending);
        }
    }

    /// Which answers about a batch found old values at one of the ages: the index of the sample, and that of its look.
    pub fn old_looks(&self, batch: &DueBatch, looks: &[Vec<Look>]) -> Vec<(usize, usize)> {
        let mut old = Vec::new();
        if batch.queue == 0 {
            return old;
        }
        for (index, (pending, looks)) in self.queues[batch.queue].iter().zip(looks).enumerate() {
            let is_old = |look: &Look| judge(&pending.sample, &pending.baselines, &self.routers, look) == Verdict::Old;
            old.extend(looks.iter().enumerate().filter(|(_, look)| is_old(look)).map(|(at, _)| (index, at)));
        }
        old
    }

    /// Counts what was answered about a batch: for each sample a look at each router or server that was asked. Returns
    /// what was found at one of the ages; a first look finds nothing.
    pub fn record(&mut self, batch: DueBatch, looks: Vec<Vec<Look>>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (sample, looks) in batch.samples.into_iter().zip(looks) {
            let mut pending = self.queues[batch.queue].pop_front().expect("a batch is the front of its queue");
            debug_assert!(Arc::ptr_eq(&pending.sample, &sample), "batches do not overlap");
            match batch.queue.checked_sub(1) {
                None => pending.baselines = looks.iter().filter_map(Baseline::of).collect(),
                Some(index) => {
                    let judge = |look: &Look| judge(&sample, &pending.baselines, &self.routers, look);
                    let looks: Vec<(Verdict, Look)> = looks.into_iter().map(|look| (judge(&look), look)).collect();
                    let verdict = looks.iter().map(|(verdict, _)| *verdict).max().unwrap_or(Verdict::Failed);
                    self.counts[index].add(verdict);
                    let baselines = pending.baselines.clone();
                    findings.push(Finding { sample, age_s: self.ages_s[index], verdict, looks, baselines });
                }
            }
            self.enqueue(batch.queue + 1, pending);
        }
        findings
    }
}
