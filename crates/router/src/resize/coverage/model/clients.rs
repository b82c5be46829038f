//! The clients of the model: they write, and look aside under leases. And what routers copy from former owners.

use super::*;

/// Whether the key changes its place only once in the order of deletes.
fn has_moved_once(active: &ActiveCoverage, key: usize) -> bool {
    let mut configs: Vec<ConfigId> = active.others.iter().map(|(id, _)| *id).collect();
    configs.insert(active.reads_at, active.reads);
    configs.retain(|id| !active.released.contains(id));
    let mut places: Vec<usize> = configs.into_iter().map(|id| place(id, key)).collect();
    places.dedup();
    places.len() == 2
}

impl World {
    pub(super) fn write(&mut self) {
        let key = self.random.usize(..KEYS);
        self.database[key] += 1;
        let (version, router) = (self.database[key], self.random.usize(..self.routers.len()));
        let Some((batch, active)) = self.begin_batch(router) else { return };
        let covered = active.others.iter().map(|(id, left_out)| (place(*id, key), left_out));
        let covered = covered.map(|(at, left_out)| (!left_out.contains(&address(at))).then_some(at));
        let mut steps: Vec<BTreeSet<usize>> = covered.map(|at| at.into_iter().collect()).collect();
        steps.insert(active.reads_at, [place(active.reads, key)].into());
        steps.retain(|step| !step.is_empty());
        steps.dedup();
        if !self.is_in_order || self.earlier == Some(router) {
            steps = vec![steps.into_iter().flatten().collect()];
        }
        let op = self.deletes.len();
        self.deletes.push(Delete { batch, key, version, steps: steps.into(), pending: 0 });
        self.send_step(op);
    }

    pub(super) fn send_step(&mut self, op: usize) {
        let step = self.deletes[op].steps.pop_front().expect("there is a step");
        self.deletes[op].pending = step.len();
        for server in step {
            let delay = if self.has_slow_deletes { self.random.u64(..1_500) } else { self.delay() };
            self.after(delay, Event::Delete { op, server });
        }
    }

    pub(super) fn delete_at(&mut self, op: usize, server: usize) {
        let Delete { batch, key, version, pending, steps } = &mut self.deletes[op];
        let (batch, key, version) = (*batch, *key, *version);
        *pending -= 1;
        let (is_done, is_last) = (*pending == 0, steps.is_empty());
        self.copies.remove(&(server, key));
        self.leases.remove(&(server, key));
        if is_done && !is_last {
            // A router that crashes sends no more.
            if self.is_up(batch.router, batch.run) {
                self.send_step(op);
            }
        } else if is_done {
            if self.is_up(batch.router, batch.run) {
                self.acknowledged[key] = self.acknowledged[key].max(version);
            }
            self.end_batch(batch);
        }
    }

    pub(super) fn read(&mut self) {
        let (key, router) = (self.random.usize(..KEYS), self.random.usize(..self.routers.len()));
        let floor = self.acknowledged[key];
        let Some((batch, active)) = self.begin_batch(router) else { return };
        let (server, delay) = (place(active.reads, key), self.delay());
        let former = active.former.filter(|_| self.earlier != Some(router)).map(|former| place(former, key));
        let former = former.filter(|former| *former != server && (!self.copies_once || has_moved_once(&active, key)));
        self.after(delay, Event::Get { batch, server, key, floor, former });
    }

    pub(super) fn get_at(
        &mut self,
        batch: Batch,
        server: usize,
        key: usize,
        floor: u64,
        former: Option<usize>,
    ) -> Result<(), String> {
        if let Some(version) = self.copies.get(&(server, key)).copied() {
            self.end_batch(batch);
            self.hits += 1;
            return self.check(batch, server, key, version, floor);
        }
        match former {
            Some(former) if self.is_up(batch.router, batch.run) => {
                let delay = self.delay();
                self.after(delay, Event::GetFormer { batch, former, new: server, key, floor });
            }
            _ => {
                self.end_batch(batch);
                self.lease(batch.router, server, key);
            }
        }
        Ok(())
    }

    /// Checks a version that `router` has read.
    pub(super) fn check(
        &self,
        batch: Batch,
        server: usize,
        key: usize,
        version: u64,
        floor: u64,
    ) -> Result<(), String> {
        match self.is_up(batch.router, batch.run) && version < floor {
            false => Ok(()),
            true => Err(format!(
                "at {} ms router {} read version {version} of key {key} at server {server}, after version {floor} was \
                 acknowledged; it covers {:?}",
                self.now,
                batch.router,
                self.coverage(batch.router).active(),
            )),
        }
    }

    pub(super) fn get_former(
        &mut self,
        batch: Batch,
        former: usize,
        new: usize,
        key: usize,
        floor: u64,
    ) -> Result<(), String> {
        let Some(version) = self.copies.get(&(former, key)).copied() else {
            self.end_batch(batch);
            self.lease(batch.router, new, key);
            return Ok(());
        };
        self.former_hits += 1;
        // The copy continues in the background, as a part of the batch.
        let delay = self.delay();
        self.after(delay, Event::Copy { copying: Copying { batch, key, former, new, token: None } });
        self.check(batch, former, key, version, floor)
    }

    /// Takes a lease at the new owner, then reads the former one.
    pub(super) fn copy(&mut self, copying: Copying) {
        let Copying { batch, key, former, new, token } = copying;
        let delay = self.delay();
        let is_leased = token.is_some() || !self.leases_copies;
        if !self.is_up(batch.router, batch.run) {
            return;
        }
        let version = self.copies.get(&(former, key)).copied();
        if is_leased && let Some(version) = version {
            self.after(delay, Event::StoreCopy { copying, version });
        } else if !is_leased && !self.copies.contains_key(&(new, key)) && !self.leases.contains_key(&(new, key)) {
            self.tokens += 1;
            self.leases.insert((new, key), self.tokens);
            self.after(delay, Event::Copy { copying: Copying { token: Some(self.tokens), ..copying } });
        } else {
            self.end_batch(batch);
        }
    }

    pub(super) fn store_copy(&mut self, copying: Copying, version: u64) {
        let Copying { batch, key, new, token, .. } = copying;
        let is_allowed = match token {
            Some(token) => self.leases.get(&(new, key)) == Some(&token),
            None => !self.copies.contains_key(&(new, key)),
        };
        if is_allowed {
            self.leases.remove(&(new, key));
            self.copies.insert((new, key), version);
            self.former_fills += 1;
        }
        self.end_batch(batch);
    }

    /// A client's miss.
    pub(super) fn lease(&mut self, router: usize, server: usize, key: usize) {
        if !self.leases.contains_key(&(server, key)) {
            self.tokens += 1;
            self.leases.insert((server, key), self.tokens);
            let (delay, token) = (self.delay(), self.tokens);
            self.after(delay, Event::QueryDatabase { router, server, key, token });
        } else if self.random.u8(..16) == 0 {
            // A lease is given again after a while.
            self.leases.remove(&(server, key));
        }
    }
}
