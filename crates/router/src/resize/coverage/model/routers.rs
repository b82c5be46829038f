//! The routers of the model: their batches, the steps of a change, what they start for one another, and their restarts.

use super::*;

impl World {
    /// Events of one router's change.
    pub(super) fn handle_change(&mut self, event: Event) {
        match event {
            Event::Swap { router, run, thread } if self.is_up(router, run) => {
                let active = self.coverage(router).active();
                self.routers[router].threads[thread] = active;
                self.report_applied(router);
            }
            Event::Poll { router, run } if self.is_up(router, run) => self.poll(router, run),
            Event::PollArrives { router, run, peer, polled_at } => {
                if let Some(coverage) = &self.routers[peer].coverage {
                    let mut report = coverage.report();
                    if self.earlier == Some(peer) {
                        report.covers.sort();
                        report.is_ordered = !self.is_earlier_known;
                    }
                    let delay = self.delay();
                    self.after(delay, Event::Report { router, run, peer, polled_at, report });
                }
            }
            Event::Report { router, run, peer, polled_at, report } if self.is_up(router, run) => {
                let index = peer - usize::from(peer > router);
                self.change(router, |coverage, now| {
                    coverage.record_report(index, Duration::from_millis(polled_at), report, now);
                });
            }
            Event::Source { config, .. } if self.is_unusable(config) => {}
            Event::Source { router, config } => {
                self.routers[router].source = config;
                let target = self.candidate(config);
                if self.routers[router].coverage.is_some() {
                    self.change(router, |coverage, now| coverage.set_target(target, now));
                }
            }
            Event::Fetched { router, run, config } if self.is_up(router, run) => {
                self.routers[router].started.remove(&format!("fetch {config}"));
                let (needed, is_unusable) = (self.candidate(config), self.is_unusable(config));
                self.change(router, |coverage, now| match is_unusable {
                    true => coverage.record_unusable(needed.id, now),
                    false => _ = coverage.cover_for_peer(&needed, now),
                });
            }
            Event::Empty { router, run, config, server, emptying } if self.is_up(router, run) => {
                let is_flushed = emptying == Emptying::Flush || self.holds_no_copies(server);
                let delay = self.delay();
                match is_flushed {
                    true => {
                        self.flush(server);
                        self.after(delay, Event::Emptied { router, run, config, server });
                    }
                    false => self.after(delay, Event::NotEmpty { router, run, config, server }),
                }
            }
            Event::Emptied { router, run, config, server } if self.is_up(router, run) => {
                self.routers[router].started.remove(&format!("empty {config} {server}"));
                self.change(router, |coverage, now| coverage.record_emptied(config, &address(server), now));
            }
            Event::NotEmpty { router, run, config, server } if self.is_up(router, run) => {
                self.record_not_empty(router, run, config, server);
            }
            Event::RetryEmpty { router, run, config, server } if self.is_up(router, run) => {
                self.routers[router].started.remove(&format!("empty {config} {server}"));
                self.change(router, |coverage, now| coverage.advance(now));
            }
            Event::Decide { config } => self.decide(config),
            Event::PurgeKey { router, run, purge, active, key } if self.is_up(router, run) => {
                self.purge_key(router, run, purge, active, key);
            }
            Event::HistoryReply { router, run, request, seen } if self.is_up(router, run) => {
                self.take_history_reply(router, request, seen);
            }
            _ => {}
        }
    }

    /// What routers read in their files.
    pub(super) fn candidate(&self, config: usize) -> Candidate {
        let flush_new = if self.flushed.contains(&config) { FlushNew::Always } else { FlushNew::OfKnownPools };
        candidate(config, self.warm_up, flush_new)
    }

    pub(super) fn is_up(&self, router: usize, run: u64) -> bool {
        self.routers[router].run == run && self.routers[router].coverage.is_some()
    }

    pub(super) fn coverage(&self, router: usize) -> &Coverage {
        self.routers[router].coverage.as_ref().expect("the router is up")
    }

    /// Routes a batch by a random thread of a router; `None` while it is down.
    pub(super) fn begin_batch(&mut self, router: usize) -> Option<(Batch, ActiveCoverage)> {
        let state = &mut self.routers[router];
        state.coverage.as_ref()?;
        let active = state.threads[self.random.usize(..THREADS)].clone();
        *state.in_flight.entry(active.number).or_default() += 1;
        Some((Batch { router, run: state.run, number: active.number }, active))
    }

    pub(super) fn end_batch(&mut self, batch: Batch) {
        if self.is_up(batch.router, batch.run) {
            *self.routers[batch.router].in_flight.get_mut(&batch.number).expect("it was begun") -= 1;
            self.report_applied(batch.router);
        }
    }

    fn report_applied(&mut self, router: usize) {
        let state = &mut self.routers[router];
        state.in_flight.retain(|_, batches| *batches > 0);
        let swapped = state.threads.iter().map(|thread| thread.number).min().expect("there are threads");
        let is_drained = state.in_flight.first_key_value().is_none_or(|(number, _)| *number >= swapped);
        if is_drained || !self.rules.drain {
            self.change(router, |coverage, now| coverage.record_applied(swapped, now));
        }
    }

    fn poll(&mut self, router: usize, run: u64) {
        for peer in (0..self.routers.len()).filter(|peer| *peer != router) {
            if self.random.u8(..10) >= self.lost_polls {
                let (delay, polled_at) = (self.delay(), self.now);
                self.after(delay, Event::PollArrives { router, run, peer, polled_at });
            }
        }
        self.after(if self.coverage(router).is_changing() { 200 } else { 1_000 }, Event::Poll { router, run });
        self.change(router, |coverage, now| coverage.advance(now));
        self.read_history(router, run);
    }

    /// Changes the coverage of a router that is up, and starts what it asks for.
    pub(super) fn change(&mut self, router: usize, change: impl FnOnce(&mut Coverage, Duration)) {
        let now = Duration::from_millis(self.now);
        let state = &mut self.routers[router];
        let coverage = state.coverage.as_mut().expect("the router is up");
        let (reads, covered) = (coverage.reads(), coverage.active().others.len());
        change(coverage, now);
        coverage.record_announced(now);
        let is_changed = coverage.reads() != reads;
        self.changes_of_reads += u64::from(is_changed);
        self.new_pools_read += u64::from(is_changed && coverage.reads().0 >= KNOWN_CONFIGS as u128);
        self.released += u64::from(coverage.active().others.len() < covered);
        state.saved = coverage.saved();
        self.start_work(router);
    }

    fn start_work(&mut self, router: usize) {
        let state = &mut self.routers[router];
        let (run, coverage) = (state.run, state.coverage.as_ref().expect("the router is up"));
        let mut work = Vec::new();
        if coverage.active().number > state.published {
            state.published = coverage.active().number;
            work.extend((0..THREADS).map(|thread| Event::Swap { router, run, thread }));
        }
        let missing = coverage.missing().into_iter().map(|(_, id)| id);
        for id in missing.chain(coverage.missing_in_history()) {
            if state.started.insert(format!("fetch {}", id.0)) {
                work.push(Event::Fetched { router, run, config: id.0 as usize });
            }
        }
        let server = |address: &Address| address.0[2..].parse().expect("s:NUMBER");
        for (to_empty, emptying) in coverage.servers_to_empty() {
            let (config, server) = (coverage.target().expect("there is a target"), server(&to_empty));
            if state.started.insert(format!("empty {config} {server}")) {
                work.push(Event::Empty { router, run, config, server, emptying });
            }
        }
        for purge in coverage.purges() {
            if state.started.insert(format!("{purge:?}")) {
                work.push(Event::PurgeKey { router, run, active: coverage.active_ids(), purge, key: 0 });
            }
        }
        for event in work {
            let delay = self.delay();
            self.after(delay, event);
        }
        self.record_history(router, run);
        self.ask_operator(router);
    }

    fn purge_key(&mut self, router: usize, run: u64, purge: Purge, active: Vec<ConfigId>, key: usize) {
        let server: usize = purge.server.0[2..].parse().expect("s:NUMBER");
        if key == KEYS {
            return self.change(router, |coverage, now| coverage.record_purged(&purge, now));
        }
        let is_there = |config: &ConfigId| place(*config, key) == server;
        if is_there(&purge.config) && !active.iter().any(is_there) && self.copies.remove(&(server, key)).is_some() {
            self.leases.remove(&(server, key));
        }
        let delay = self.delay();
        self.after(delay, Event::PurgeKey { router, run, purge, active, key: key + 1 });
    }

    /// Starts a router from its disk, or, if all its peers are up or its disk was lost, from them and the history.
    pub(super) fn restart(&mut self, router: usize) {
        let peers: Vec<_> = (0..self.routers.len()).filter(|peer| *peer != router).collect();
        let mut reports: Vec<_> =
            peers.iter().filter_map(|peer| Some(self.routers[*peer].coverage.as_ref()?.report())).collect();
        let settings = CoverageSettings { peers: peers.len(), ignores_missing_peers: false, rules: self.rules };
        let is_memory_lost = reports.len() == peers.len() && self.random.bool();
        self.record_unusable(router);
        let source = self.routers[router].source;
        reports.extend(self.history_report(source));
        let from_reports = || {
            let mut ids: Vec<ConfigId> = Vec::new();
            for id in reports.iter().flat_map(|report| &report.covers) {
                if !ids.contains(id) {
                    ids.push(*id);
                }
            }
            let configs = ids.iter().map(|id| self.candidate(id.0 as usize)).collect();
            SavedCoverage::from_peers(&reports, configs).unwrap_or_else(|| first_start(self.candidate(source)))
        };
        let is_memory_lost = self.routers[router].is_memory_lost || is_memory_lost;
        let saved = if is_memory_lost { from_reports() } else { self.routers[router].saved.clone() };
        let state = &mut self.routers[router];
        state.is_memory_lost = false;
        let mut coverage = Coverage::restore(saved, settings, Duration::from_millis(self.now));
        if let Some(history) = &self.history {
            history.introduce(&mut coverage, Duration::from_millis(self.now));
        }
        state.threads = vec![coverage.active(); THREADS];
        state.published = coverage.active().number;
        state.in_flight.clear();
        state.started.clear();
        state.history_request = None;
        state.coverage = Some(coverage);
        let run = state.run;
        self.after(0, Event::Poll { router, run });
        let target = self.candidate(source);
        self.change(router, |coverage, now| coverage.set_target(target, now));
    }
}

/// The state of a router that remembers nothing, and finds nothing.
pub(super) fn first_start(config: Candidate) -> SavedCoverage {
    let only = SavedConfig { config, is_claimed: true, was_read: true };
    SavedCoverage { reads: only.config.id, covered: vec![only], departed: Departed::default() }
}
