//! Platforms of tests that differ from the real machine in few calls.

/// The calls of `Platform` that are forwarded to the real machine in the field `$machine`: all but `choose` and
/// `engine`.
macro_rules! forward {
    ($machine:tt) => {
        fn attach(
            &self,
            path: &std::path::Path,
            create: bool,
        ) -> std::io::Result<std::sync::Arc<dyn iomill::sys::fs::DriveFs>> {
            self.$machine.attach(path, create)
        }
        fn neighbours(&self, near: &std::path::Path) -> Vec<std::path::PathBuf> {
            self.$machine.neighbours(near)
        }
        fn clock(&self) -> std::sync::Arc<dyn iomill::sys::clock::Clock> {
            self.$machine.clock()
        }
        fn random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
            self.$machine.random(bytes)
        }
        fn threads(&self) -> bool {
            self.$machine.threads()
        }
    };
}

/// The functions of `Engine` that are forwarded to `self.$engine`. `$forgets` is called before `forget`.
macro_rules! forward_engine {
    ($engine:tt) => {
        forward_engine!($engine, |_: &Self| ());
    };
    ($engine:tt, $forgets:expr) => {
        fn kind(&self) -> iomill::EngineKind {
            self.$engine.kind()
        }
        fn forget(&mut self, key: u64) {
            $forgets(self);
            self.$engine.forget(key);
        }
        unsafe fn register(&mut self, start: *mut u8, len: usize) -> Option<u16> {
            // SAFETY: the caller's promise.
            unsafe { self.$engine.register(start, len) }
        }
        fn unregister(&mut self, region: u16) {
            self.$engine.unregister(region);
        }
    };
}
