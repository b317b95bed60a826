//! One simulated drive with one file for direct I/O and an engine. Tests of the simulator share it.

// Each test file uses a different part of this.
#![allow(dead_code)]

use std::io;
use std::sync::Arc;

use iomill::engine::{Completion, Engine, EngineConfig, EngineKind, FileRef, IoRequest, Memory, Op};
use iomill::sys::fs::{Access, DriveFs, Handle};
use iomill_sim::{DriveModel, World};

pub const PAGE: usize = 4096;

/// Memory that is aligned to a page.
#[repr(C, align(4096))]
#[derive(Clone)]
pub struct PageBuf(pub [u8; PAGE]);

/// Page-aligned memory of `pages` pages.
pub fn memory(pages: usize, byte: u8) -> Vec<PageBuf> {
    vec![PageBuf([byte; PAGE]); pages]
}

pub struct Rig {
    pub world: World,
    pub fs: Arc<dyn DriveFs>,
    pub file: Handle,
    pub engine: Box<dyn Engine>,
}

impl Rig {
    /// A world with one drive, on which the empty file `part` is durable.
    pub fn new(seed: u64, model: DriveModel) -> Rig {
        let world = World::new(seed).with_drives(1, model);
        let fs = world.platform().attach(&world.path(0), true).unwrap();
        let file = fs.open("part", Access::CREATE.direct()).unwrap();
        fs.sync_dir("").unwrap();
        let engine = engine(&world, 64);
        Rig { world, fs, file, engine }
    }

    pub fn request(&self, slot: u32, op: Op, offset: u64, buf: &mut [PageBuf]) -> IoRequest {
        let file = FileRef { handle: self.file, key: 1 };
        let (memory, len) = (Memory::one(buf.as_mut_ptr().cast()), size_of_val(buf) as u32);
        IoRequest { slot, op, len, file, offset, memory }
    }

    /// Runs one request to its end.
    pub fn run(&mut self, request: IoRequest) -> io::Result<i32> {
        let mut done = Vec::new();
        // SAFETY: the callers' memory outlives this call. The call ends with the request, or with the world.
        unsafe { self.engine.push(&[request]) };
        self.engine.wait(1, None, &mut done)?;
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].slot, request.slot);
        Ok(done[0].result)
    }

    pub fn write(&mut self, page: u64, byte: u8) -> io::Result<i32> {
        let mut buf = memory(1, byte);
        let request = self.request(0, Op::Write, page * PAGE as u64, &mut buf);
        self.run(request)
    }

    pub fn sync(&mut self) -> io::Result<i32> {
        let request = self.request(0, Op::Sync, 0, &mut []);
        self.run(request)
    }

    /// Waits for `count` completions.
    pub fn reap(&mut self, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        self.engine.wait(count, None, &mut done).unwrap();
        done
    }
}

pub fn engine(world: &World, capacity: u32) -> Box<dyn Engine> {
    let config = EngineConfig { capacity, poll: false, hold: Vec::new(), shared: false };
    world.platform().engine(EngineKind::Simulated, &config).unwrap()
}
