//! The words of a snapshot, written and read (§6.4 of the paper). Each part of the store saves and restores its own
//! state with these; `warm_restart/snapshot.rs` has the layout.

/// Writes words in the order in which they will be read.
#[derive(Default)]
pub(crate) struct SnapshotWriter {
    words: Vec<u32>,
}

impl SnapshotWriter {
    pub fn put_u32(&mut self, word: u32) {
        self.words.push(word);
    }

    pub fn put_u64(&mut self, long: u64) {
        self.words.extend([long as u32, (long >> 32) as u32]);
    }

    /// A count or an index, which never comes near 2^32.
    pub fn put_count(&mut self, count: usize) {
        self.put_u32(u32::try_from(count).expect("counts of pages, chunks and a stripe's items fit a word"));
    }

    pub fn into_words(self) -> Vec<u32> {
        self.words
    }
}

/// Reads what [`SnapshotWriter`] wrote. Every method returns `None` if the words make no sense.
pub(crate) struct SnapshotReader<'a> {
    words: &'a [u32],
}

impl<'a> SnapshotReader<'a> {
    pub fn new(words: &'a [u32]) -> SnapshotReader<'a> {
        SnapshotReader { words }
    }

    pub fn get_u32(&mut self) -> Option<u32> {
        let (&word, rest) = self.words.split_first()?;
        self.words = rest;
        Some(word)
    }

    pub fn get_u64(&mut self) -> Option<u64> {
        Some(u64::from(self.get_u32()?) | u64::from(self.get_u32()?) << 32)
    }

    /// A count of at most `count_max`.
    pub fn get_count(&mut self, count_max: usize) -> Option<usize> {
        let count = self.get_u32()? as usize;
        (count <= count_max).then_some(count)
    }

    pub fn is_at_end(&self) -> bool {
        self.words.is_empty()
    }
}

/// The pages for which a restore has found an owner, so that none has two.
pub(crate) struct PageOwners(Vec<bool>);

impl PageOwners {
    pub fn new(pages: usize) -> PageOwners {
        PageOwners(vec![false; pages])
    }

    /// Records that `page` has an owner. `None` if it does not exist or has an owner already.
    pub fn claim(&mut self, page: u32) -> Option<u32> {
        let is_owned = self.0.get_mut(page as usize)?;
        (!std::mem::replace(is_owned, true)).then_some(page)
    }

    /// Whether all pages before `fresh` have an owner, and no other page has.
    pub fn are_exactly_those_before(&self, fresh: usize) -> bool {
        self.0.iter().enumerate().all(|(page, &is_owned)| is_owned == (page < fresh))
    }
}
