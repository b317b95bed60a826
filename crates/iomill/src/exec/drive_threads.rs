//! The drive threads of an array ([`DriveThreads`]): one server per drive, started when first needed. In a simulation there are no
//! threads, and a caller that waits steps the servers. Non-goals: what a server does (`drive::serve`).

use std::sync::Arc;
use std::thread::JoinHandle;

use super::pools;
use crate::drive::Class;
use crate::drive::inbox::{Inbox, Load};
use crate::drive::inline::{Service, with_rings_or_without};
use crate::drive::locks::BlockLocks;
use crate::drive::regions::Regions;
use crate::drive::serve::{Message, Server, Turn, Unblock};
use crate::engine::EngineWake;
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::cpu;
use crate::sys::fs::Handle;
use crate::sys::grown::Grown;
use crate::sys::sync::{Mutex, lock};

/// What drive threads are made from.
pub struct DriveThreadsConfig<'a> {
    pub platform: &'a dyn Platform,
    pub services: &'a [Service],
    /// How many drives there may be.
    pub most: usize,
    /// Whether another engine may replace one that cannot be made: no option names one.
    pub may_change: bool,
    /// CPUs of each drive's thread; empty means any.
    pub cpus: Vec<Vec<usize>>,
    pub locks: &'a Arc<BlockLocks>,
    pub regions: &'a Arc<Regions>,
    pub hold: &'a [Handle],
    /// For servers with blocked pieces.
    pub unblock: Unblock,
}

/// The servers of all drives.
pub struct DriveThreads {
    inboxes: Grown<ServerInbox>,
    servers: Mutex<Servers>,
}

/// Where a drive receives its messages.
struct ServerInbox {
    inbox: Arc<Inbox<Message>>,
    waker: Arc<dyn EngineWake>,
}

enum Servers {
    Threads(Vec<JoinHandle<()>>),
    /// A caller that waits steps them.
    Stepped(Vec<Server>),
}

impl std::fmt::Debug for DriveThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DriveThreads of {}", self.inboxes.count())
    }
}

impl DriveThreads {
    /// Makes the servers and starts their threads. Notices say where a thread could not be bound to its CPUs, or uses another engine.
    pub fn start(config: &DriveThreadsConfig<'_>, notice: &dyn Fn(String)) -> Result<DriveThreads> {
        let servers =
            if config.platform.threads() { Servers::Threads(Vec::new()) } else { Servers::Stepped(Vec::new()) };
        let all = DriveThreads { inboxes: Grown::new(config.most), servers: Mutex::new(servers) };
        all.start_missing(config, notice)?;
        Ok(all)
    }

    /// Starts the threads of drives that have none. One thread at a time calls this. After an error the drives before that have theirs.
    pub fn start_missing(&self, config: &DriveThreadsConfig<'_>, notice: &dyn Fn(String)) -> Result<()> {
        for (drive, service) in config.services.iter().enumerate().skip(self.count()) {
            let make =
                |one: &[Service]| Server::new(config.platform, &one[0], config.locks, config.regions, config.hold);
            let server = with_rings_or_without(std::slice::from_ref(service), config.may_change, notice, make);
            let mut server = server.map_err(|source| {
                let thread = format!("a drive thread ({})", service.kind);
                Error::Engine { thread, drive: Some(drive as u16), source }
            })?;
            server.unblock_by(&config.unblock);
            let inbox = ServerInbox { inbox: server.inbox(), waker: server.waker() };
            match &mut *lock(&self.servers) {
                Servers::Stepped(servers) => servers.push(server),
                Servers::Threads(threads) => {
                    let cpus = config.cpus.get(drive).cloned().unwrap_or_default();
                    threads.push(spawn(drive, server, cpus, notice)?);
                }
            }
            let pushed = self.inboxes.push(inbox);
            assert!(pushed.is_ok(), "there is room for the inboxes of all drives");
        }
        Ok(())
    }

    /// How many drives have a server.
    pub fn count(&self) -> usize {
        self.inboxes.count()
    }

    /// Sends a message to a drive. Returns the message if the servers have stopped. Waits while the inbox is full, except in a waker
    /// (rule 3 of `pools`).
    pub fn send(&self, drive: usize, message: Message, weight: usize) -> std::result::Result<(), Message> {
        let to = &self.inboxes[drive];
        let load = match message.behind() {
            0 => Load::Front(weight),
            behind => Load::Behind(behind),
        };
        if !pools::may_wait() {
            return to.inbox.push(message, load, || to.waker.wake());
        }
        to.inbox.hand_over(message, load, || to.waker.wake(), || self.step())
    }

    /// Whether a drive takes a share of `weight` pieces without a wait.
    pub fn has_room(&self, drive: usize, class: Class, weight: usize) -> bool {
        // A thread that is not there yet has an empty inbox.
        let Some(ServerInbox { inbox, .. }) = self.inboxes.get(drive) else { return true };
        if class == Class::Background { inbox.has_room_behind(weight) } else { inbox.has_room(weight) }
    }

    /// Advances servers that have no threads. Returns `false` if they have threads.
    pub fn step(&self) -> bool {
        let mut servers = lock(&self.servers);
        let Servers::Stepped(servers) = &mut *servers else { return false };
        let mut busy = false;
        for server in servers.iter_mut() {
            // A server with nothing but blocked work waits for another server, which must get its turn.
            busy |= !server.in_flight() && server.turn(false) == Turn::Busy && !server.is_blocked();
        }
        if !busy && let Some(server) = servers.iter_mut().find(|server| server.in_flight()) {
            server.turn(true);
        }
        true
    }

    /// Stops the servers when everything that was handed to them has ended.
    pub fn stop(&self) {
        for to in self.inboxes.iter() {
            if to.inbox.close() {
                to.waker.wake();
            }
        }
        let mut servers = lock(&self.servers);
        match &mut *servers {
            Servers::Stepped(servers) => servers.clear(),
            Servers::Threads(threads) => {
                for thread in threads.drain(..) {
                    if thread.thread().id() != std::thread::current().id() {
                        // A server that panicked has drained its I/O while unwinding, and the panic message has been printed.
                        let _ = thread.join();
                    }
                }
            }
        }
    }
}

impl Drop for DriveThreads {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(drive: usize, mut server: Server, cpus: Vec<usize>, notice: &dyn Fn(String)) -> Result<JoinHandle<()>> {
    let (report, bound) = std::sync::mpsc::channel();
    let name = format!("iomill-drive-{drive}");
    let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
        let result = if cpus.is_empty() { Ok(()) } else { cpu::bind_current_thread(&cpus) };
        let _ = report.send(result);
        while server.turn(true) != Turn::Ended {}
    });
    let thread = thread.map_err(|source| Error::Thread { name, drive: Some(drive as u16), source })?;
    if let Ok(Err(error)) = bound.recv() {
        notice(format!("the thread of drive {drive} runs on any CPU: {error}"));
    }
    Ok(thread)
}
