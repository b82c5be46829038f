//! What was found, for people and programs: metrics, a table, JSON, and the paper's figure 11.

mod curves;
mod figure;
mod prometheus;
mod report;
mod summary;

pub use curves::{Curve, curves};
pub use figure::draw;
pub use prometheus::{Liveness, render};
pub use report::{ClusterReport, MonitorReport};
pub use summary::{to_json, to_table};

/// An age of a delete in the largest unit that divides it: `1 s`, `10 min`, `1 h`.
pub fn age_name(age_s: u32) -> String {
    match age_s {
        s if s >= 3_600 && s % 3_600 == 0 => format!("{} h", s / 3_600),
        s if s >= 60 && s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::age_name;

    #[test]
    fn ages_have_the_units_of_people() {
        let names: Vec<String> = [1, 10, 60, 90, 600, 3_600, 5_400].map(age_name).into();
        assert_eq!(names, ["1 s", "10 s", "1 min", "90 s", "10 min", "1 h", "90 min"]);
    }
}
