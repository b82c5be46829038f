//! Popularity by Zipf's law: the share of rank r, from 1, is proportional to r to the power of minus the exponent.

/// The popularity of a number of ranks.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// The cumulative share of each rank.
    reached: Vec<f64>,
}

impl Zipf {
    /// The popularity of `ranks` ranks, at least one; with an exponent of 0 all are alike.
    pub fn new(ranks: usize, exponent: f64) -> Zipf {
        assert!(ranks > 0, "a popularity has a rank");
        let mut sum = 0.0;
        let mut reached: Vec<f64> = (1..=ranks)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        reached.iter_mut().for_each(|share| *share /= sum);
        Zipf { reached }
    }

    /// The rank, from 0, at a place between 0 and 1 that is drawn evenly.
    pub fn rank(&self, place: f64) -> usize {
        self.reached.partition_point(|&reached| reached <= place).min(self.reached.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_their_shares() {
        let zipf = Zipf::new(3, 1.0);
        // 1, 1/2, 1/3 of 11/6.
        let ranks = [0.0, 0.54, 0.55, 0.81, 0.82, 0.999_999, 1.0].map(|place| zipf.rank(place));
        assert_eq!(ranks, [0, 0, 1, 1, 2, 2, 2]);
        let even = Zipf::new(4, 0.0);
        assert_eq!([0.0, 0.25, 0.5, 0.75].map(|place| even.rank(place)), [0, 1, 2, 3]);
    }
}
