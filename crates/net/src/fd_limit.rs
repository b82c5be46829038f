//! The limit on open files: each connection needs one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to `wanted`, or to the hard limit if that is lower or `wanted` is `None`. Never
/// lowers it. Returns the soft limit that holds afterwards; `None` if there is none.
pub fn raise_fd_limit(wanted: Option<u64>) -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    let raised = raised(&limits, wanted);
    if raised == limits.current {
        return raised;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: raised, maximum: limits.maximum }) {
        Ok(()) => raised,
        Err(_) => limits.current,
    }
}

fn raised(limits: &Rlimit, wanted: Option<u64>) -> Option<u64> {
    let current = limits.current?;
    let allowed = match (limits.maximum, wanted) {
        (Some(maximum), Some(wanted)) => maximum.min(wanted),
        (Some(limit), None) | (None, Some(limit)) => limit,
        (None, None) => return None,
    };
    Some(allowed.max(current))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_raised_as_far_as_the_hard_limit_and_never_lowered() {
        let limits = |current, maximum| Rlimit { current, maximum };
        assert_eq!(raised(&limits(Some(1_024), Some(4_096)), Some(2_000)), Some(2_000));
        assert_eq!(raised(&limits(Some(1_024), Some(4_096)), Some(10_000)), Some(4_096));
        assert_eq!(raised(&limits(Some(1_024), Some(4_096)), Some(100)), Some(1_024));
        assert_eq!(raised(&limits(Some(1_024), Some(4_096)), None), Some(4_096));
        assert_eq!(raised(&limits(Some(1_024), None), Some(10_000)), Some(10_000));
        assert_eq!(raised(&limits(Some(1_024), None), None), None);
        assert_eq!(raised(&limits(None, None), Some(10_000)), None);
    }

    #[test]
    fn raised_limit_holds_for_the_process() {
        let limit = raise_fd_limit(None);
        assert_eq!(getrlimit(Resource::Nofile).current, limit);
        assert_eq!(raise_fd_limit(Some(1)), limit, "a lower number changes nothing");
    }
}
