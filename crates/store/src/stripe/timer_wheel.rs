//! The timer wheel of a stripe: for each of the next 64 seconds a list of blocks with the items that end in it
//! (`memory/transient.rs`).

use crate::snapshot_codec::{SnapshotReader, SnapshotWriter};

pub(crate) const WHEEL_S: u32 = 64;

pub(crate) struct TimerWheel {
    /// The newest block of each second, as a handle; 0: none.
    pub blocks: [u32; WHEEL_S as usize],
    /// All entries up to this second have been handled.
    pub done_s: u32,
}

impl Default for TimerWheel {
    fn default() -> Self {
        TimerWheel { blocks: [0; WHEEL_S as usize], done_s: 0 }
    }
}

impl TimerWheel {
    /// Saves the blocks' handles; the blocks lie in the region.
    pub fn save(&self, snapshot: &mut SnapshotWriter) {
        snapshot.put_u32(self.done_s);
        self.blocks.iter().for_each(|&block| snapshot.put_u32(block));
    }

    /// Restores what [`TimerWheel::save`] saved.
    pub fn restore(&mut self, snapshot: &mut SnapshotReader<'_>) -> Option<()> {
        self.done_s = snapshot.get_u32()?;
        for block in &mut self.blocks {
            *block = snapshot.get_u32()?;
        }
        Some(())
    }

    /// Skips seconds up to now in which nothing ends. Once around is enough.
    pub fn skip_empty_seconds(&mut self, now_s: u32) {
        self.done_s = self.done_s.max(now_s.saturating_sub(WHEEL_S));
        while self.done_s < now_s && self.blocks[((self.done_s + 1) % WHEEL_S) as usize] == 0 {
            self.done_s += 1;
        }
    }
}
