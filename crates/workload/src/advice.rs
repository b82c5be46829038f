//! Where a family of keys should be cached: in each cluster, once for the region (§4.2), in a replicated pool (§3.2.3),
//! or in a pool of its own (§3.2.2). The paper decides by hand; these rules put its factors into numbers.
//!
//! The clusters of a region share its traffic: users are routed to them at random (§4.2), so each has an equal part of
//! the gets of a family. A pool of a cluster, also a replicated one, has to answer that part alone; the regional pool
//! answers all.

use crate::key_families::Family;

/// What a family of keys should be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// A copy in each cluster, in the pool that it has.
    Cluster,
    /// One copy for the region.
    Regional,
    /// A pool whose servers all hold all of its keys.
    Replicated,
    /// A pool of its own in each cluster.
    OwnPool,
}

/// What the rules compare with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdviceOptions {
    /// Clusters that share the gets, as [`FamilyMeter`](crate::FamilyMeter) has counted them. Default 2.
    pub clusters: u32,
    /// A family may be regional if the median of its users per key is at most this. Default 3; the paper moved a family
    /// with 1, and kept one with 30.
    pub regional_users_max: u32,
    /// The gets that a server can answer, per second. Default 500,000, as in the paper's example.
    pub server_gets_per_s: f64,
    /// The memory of a server, in bytes. Default 64 GiB.
    pub server_bytes: u64,
}

impl Default for AdviceOptions {
    fn default() -> Self {
        AdviceOptions { clusters: 2, regional_users_max: 3, server_gets_per_s: 500_000.0, server_bytes: 64 << 30 }
    }
}

/// A family whose share of the gets is less than this part of its share of the bytes is rarely accessed.
const RARE_GETS_PART: f64 = 0.5;
/// A family is moved only if this part of all clusters' bytes is saved.
const SAVED_PART_MIN: f64 = 0.01;
/// Keys that are routinely read together.
const BATCH_KEYS_MIN: f64 = 10.0;
/// Servers that a replicated data set may fill.
const REPLICATED_SERVERS_MAX: u64 = 2;
/// A family is rewritten often if it is rewritten this many times as often as the others are.
const CHURN_TIMES_MIN: f64 = 10.0;
/// A family's writes push others out if they are this part of all bytes written.
const WRITTEN_PART_MIN: f64 = 0.25;

/// A family and where it should be cached.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The family.
    pub family: Family,
    /// Where it should be.
    pub placement: Placement,
    /// The bytes that the region's clusters save by that; 0 unless it is [`Placement::Regional`].
    pub saved_bytes: u64,
    /// The bytes that they need more for it; 0 unless it is [`Placement::Replicated`].
    pub cost_bytes: u64,
    /// The facts that led to it.
    pub why: String,
}

/// Advises on each family, the largest first.
pub fn advise(mut families: Vec<Family>, options: &AdviceOptions) -> Vec<Advice> {
    families.sort_by_key(|family| std::cmp::Reverse(family.data_bytes));
    let totals = Totals::of(&families);
    families.into_iter().map(|family| totals.advise(family, options)).collect()
}

struct Totals {
    data_bytes: f64,
    /// What all clusters hold.
    held_bytes: f64,
    gets_per_s: f64,
    written_bytes_per_s: f64,
}

impl Totals {
    fn of(families: &[Family]) -> Totals {
        let sum = |value: fn(&Family) -> f64| families.iter().map(value).sum();
        Totals {
            data_bytes: sum(|family| family.data_bytes as f64),
            held_bytes: sum(|family| (family.data_bytes + family.duplicate_bytes) as f64),
            gets_per_s: sum(|family| family.gets_per_s),
            written_bytes_per_s: sum(|family| family.written_bytes_per_s),
        }
    }

    fn advise(&self, family: Family, options: &AdviceOptions) -> Advice {
        let (placement, why) = self
            .replicated(&family, options)
            .or_else(|| self.regional(&family, options))
            .or_else(|| self.own_pool(&family))
            .unwrap_or_else(|| (Placement::Cluster, self.describe(&family)));
        let (saved_bytes, cost_bytes) = match placement {
            Placement::Regional => (family.duplicate_bytes, 0),
            Placement::Replicated => (0, replication_bytes(&family, options)),
            Placement::Cluster | Placement::OwnPool => (0, 0),
        };
        Advice { family, placement, saved_bytes, cost_bytes, why }
    }

    /// §3.2.3: many keys at once, a data set that fits into one or two servers, and in each cluster more requests than
    /// a server can answer.
    fn replicated(&self, family: &Family, options: &AdviceOptions) -> Option<(Placement, String)> {
        let fits = family.data_bytes <= REPLICATED_SERVERS_MAX * options.server_bytes;
        let gets_per_s = gets_of_a_cluster(family, options);
        let is_hot = gets_per_s > options.server_gets_per_s && family.keys_per_page >= BATCH_KEYS_MIN;
        (fits && is_hot).then(|| {
            let why = format!(
                "{gets_per_s:.0} gets/s in each cluster, where a server answers {:.0}, {:.0} keys at once, and all of it \
                 fits into {} servers",
                options.server_gets_per_s, family.keys_per_page, REPLICATED_SERVERS_MAX
            );
            (Placement::Replicated, why)
        })
    }

    /// §4.2, Table 1: few users per key, few gets for its size.
    fn regional(&self, family: &Family, options: &AdviceOptions) -> Option<(Placement, String)> {
        let (gets, bytes) = self.shares(family);
        let has_few_users = family.users_median.is_some_and(|users| users <= options.regional_users_max);
        let saves = family.duplicate_bytes as f64 >= SAVED_PART_MIN * self.held_bytes && family.duplicate_bytes > 0;
        (has_few_users && gets <= RARE_GETS_PART * bytes && saves).then(|| {
            let why =
                format!("few users per key, {:.1} % of the gets for {:.1} % of the bytes", gets * 100.0, bytes * 100.0);
            (Placement::Regional, why)
        })
    }

    /// §3.2.2: a family with a high churn pushes out others that are read as long as they are cached.
    fn own_pool(&self, family: &Family) -> Option<(Placement, String)> {
        let other_bytes = self.data_bytes - family.data_bytes as f64;
        let written = part(family.written_bytes_per_s, self.written_bytes_per_s);
        let churn = part(family.written_bytes_per_s, family.data_bytes as f64);
        let others = part(self.written_bytes_per_s - family.written_bytes_per_s, other_bytes);
        (other_bytes > 0.0 && written >= WRITTEN_PART_MIN && churn >= CHURN_TIMES_MIN * others).then(|| {
            let why = format!(
                "{:.0} % of the bytes written for {:.1} % of the bytes cached: it pushes out the others",
                written * 100.0,
                self.shares(family).1 * 100.0
            );
            (Placement::OwnPool, why)
        })
    }

    fn describe(&self, family: &Family) -> String {
        let (gets, bytes) = self.shares(family);
        format!("{:.1} % of the gets for {:.1} % of the bytes", gets * 100.0, bytes * 100.0)
    }

    /// Its parts of all gets and of all bytes.
    fn shares(&self, family: &Family) -> (f64, f64) {
        (part(family.gets_per_s, self.gets_per_s), part(family.data_bytes as f64, self.data_bytes))
    }
}

/// The part of a family's gets that reaches one cluster.
fn gets_of_a_cluster(family: &Family, options: &AdviceOptions) -> f64 {
    family.gets_per_s / f64::from(options.clusters)
}

/// What the copies of a replicated family take beyond the first one in each cluster: there as many servers have all of
/// it as the gets of the cluster need.
fn replication_bytes(family: &Family, options: &AdviceOptions) -> u64 {
    let copies = (gets_of_a_cluster(family, options) / options.server_gets_per_s).ceil().max(1.0) as u64;
    (family.data_bytes + family.duplicate_bytes).saturating_mul(copies - 1)
}

fn part(value: f64, of: f64) -> f64 {
    if of > 0.0 { value / of } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(name: &str, gets_per_s: f64, users: u32, data_mib: u64) -> Family {
        Family {
            name: name.to_owned(),
            keys: 1_000,
            gets_per_s,
            get_bytes_per_s: gets_per_s * 1_000.0,
            sets_per_s: 1.0,
            written_bytes_per_s: data_mib as f64,
            deletes_per_s: 0.0,
            users_median: Some(users),
            value_bytes_median: 1_000,
            data_bytes: data_mib << 20,
            keys_per_page: 2.0,
            duplicate_bytes: data_mib << 20,
        }
    }

    fn placements(families: Vec<Family>) -> Vec<(String, Placement)> {
        let advices = advise(families, &AdviceOptions::default());
        advices.into_iter().map(|advice| (advice.family.name, advice.placement)).collect()
    }

    /// The families of Table 1: B is a quarter of the bytes, and is accessed seven times less than A.
    #[test]
    fn of_table_1_the_rarely_used_family_is_moved() {
        let families = vec![family("a", 3_260.0, 30, 750), family("b", 458.0, 1, 250)];
        let expected = [("a".to_owned(), Placement::Cluster), ("b".to_owned(), Placement::Regional)];
        assert_eq!(placements(families.clone()), expected);
        let advices = advise(families, &AdviceOptions::default());
        assert_eq!((advices[0].saved_bytes, advices[1].saved_bytes), (0, 250 << 20));
    }

    #[test]
    fn each_factor_alone_keeps_a_family_in_the_clusters() {
        let a = || family("a", 3_260.0, 30, 750);
        let regional = |b: Family| placements(vec![a(), b])[1].1 == Placement::Regional;
        assert!(regional(family("b", 458.0, 1, 250)));
        assert!(!regional(family("b", 458.0, 30, 250)), "many users");
        assert!(!regional(family("b", 1_500.0, 1, 250)), "many gets");
        assert!(!regional(Family { duplicate_bytes: 1 << 20, ..family("b", 458.0, 1, 250) }), "nothing to save");
        assert!(!regional(Family { users_median: None, ..family("b", 458.0, 1, 250) }), "users are not known");
    }

    #[test]
    fn a_small_family_that_is_read_in_batches_beyond_one_server_is_replicated() {
        let hot = Family { keys_per_page: 100.0, ..family("hot", 1_600_000.0, 64, 10) };
        assert_eq!(placements(vec![hot.clone()]), [("hot".to_owned(), Placement::Replicated)]);
        // Each of two clusters has 800,000 gets a second, which need two servers. The second one has another 10 MiB.
        let advice = &advise(vec![hot.clone()], &AdviceOptions::default())[0];
        assert_eq!((advice.saved_bytes, advice.cost_bytes), (0, 20 << 20));
        for other in [
            Family { keys_per_page: 2.0, ..hot.clone() },
            Family { gets_per_s: 900_000.0, ..hot.clone() },
            Family { data_bytes: 200 << 30, ..hot.clone() },
        ] {
            assert_eq!(placements(vec![other])[0].1, Placement::Cluster);
        }
    }

    /// Each cluster was charged with copies for the gets of all.
    #[test]
    fn the_copies_of_a_replicated_family_are_those_that_the_gets_of_each_cluster_need() {
        // 2,400,000 gets a second of 10 MiB; a server answers 500,000. In one cluster five servers must have them, and
        // each but the first is a copy of 10 MiB. Two clusters have 1,200,000 gets each, for which three servers are
        // needed there: two copies more in each. Four clusters have 600,000 each: two servers, one copy more in each.
        // Of five clusters each has 480,000, which one server answers.
        for (clusters, copies_more, placement) in [
            (1, 4, Placement::Replicated),
            (2, 2 * 2, Placement::Replicated),
            (4, 4, Placement::Replicated),
            (5, 0, Placement::Cluster),
        ] {
            let duplicate_bytes = u64::from(clusters - 1) * (10 << 20);
            let hot = Family { keys_per_page: 100.0, duplicate_bytes, ..family("hot", 2_400_000.0, 64, 10) };
            let advice = &advise(vec![hot], &AdviceOptions { clusters, ..AdviceOptions::default() })[0];
            assert_eq!((advice.placement, advice.cost_bytes), (placement, copies_more * (10 << 20)), "{clusters}");
        }
    }

    #[test]
    fn a_family_that_is_rewritten_often_gets_a_pool_of_its_own() {
        let feed = Family { written_bytes_per_s: 100_000.0, ..family("feed", 1_000.0, 30, 100) };
        let calm = family("calm", 1_000.0, 30, 900);
        let expected = [("calm".to_owned(), Placement::Cluster), ("feed".to_owned(), Placement::OwnPool)];
        assert_eq!(placements(vec![feed.clone(), calm]), expected);
        assert_eq!(placements(vec![feed])[0].1, Placement::Cluster, "there is none beside it");
    }
}
