//! Goes through every reachable state of a [`World`] once.

use super::world::{Stale, World};
use std::{
    collections::HashSet,
    fmt::Write,
    hash::{DefaultHasher, Hasher},
    rc::Rc,
};

/// What [`explore`] has found.
#[derive(Debug)]
pub(super) struct Explored {
    pub states: usize,
    /// The steps to a read that is older than the user's write. `None` if there is none.
    pub violation: Option<Vec<String>>,
}

struct Trail {
    label: String,
    before: Option<Rc<Trail>>,
}

pub(super) fn explore(start: World) -> Explored {
    let mut seen = HashSet::from([fingerprint(&start)]);
    let mut stack: Vec<(World, Option<Rc<Trail>>)> = vec![(start, None)];
    while let Some((world, before)) = stack.pop() {
        for (label, next) in world.successors() {
            let trail = Some(Rc::new(Trail { label, before: before.clone() }));
            match next {
                Err(Stale(version)) => {
                    let violation = steps(trail.as_ref(), format!("and reads version {version}"));
                    return Explored { states: seen.len(), violation: Some(violation) };
                }
                Ok(next) if seen.insert(fingerprint(&next)) => stack.push((next, trail)),
                Ok(_) => {}
            }
        }
    }
    Explored { states: seen.len(), violation: None }
}

fn steps(trail: Option<&Rc<Trail>>, last: String) -> Vec<String> {
    let labels = std::iter::successors(trail, |trail| trail.before.as_ref()).map(|trail| trail.label.clone());
    let mut steps: Vec<String> = std::iter::once(last).chain(labels).collect();
    steps.reverse();
    steps
}

/// Equal states have equal texts.
fn fingerprint(world: &World) -> u64 {
    struct HashingWriter(DefaultHasher);
    impl Write for HashingWriter {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut writer = HashingWriter(DefaultHasher::new());
    write!(writer, "{world:?}").expect("a hasher takes everything");
    writer.0.finish()
}
