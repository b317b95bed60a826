//! The meaning of an I/O's errno for the code that must act on it.
//!
//! Goals: one table, so that the results of all engines are judged alike. Non-goals: retries; the drive queue makes
//! them.

/// The classes of failed I/O, by what to do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrnoClass {
    /// Temporary: the same request may succeed at once or soon.
    Retry,
    /// The caller must act: no space, a quota, a file system mounted read-only.
    Caller,
    /// The drive, or the path to it, failed. Another try does not help.
    Drive,
    /// iomill asked for something invalid: a bad descriptor, address or alignment.
    Bug,
    /// An errno that reads, writes and syncs are not known to return.
    Unexpected,
}

/// Classifies the errno (a positive number) of a read, a write or an `fdatasync`.
pub fn classify(errno: i32) -> ErrnoClass {
    match errno {
        libc::EINTR | libc::EAGAIN => ErrnoClass::Retry,
        // The kernel was short of memory for this one request.
        libc::ENOBUFS | libc::ENOMEM => ErrnoClass::Retry,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EROFS => ErrnoClass::Caller,
        libc::EACCES | libc::EPERM | libc::ETXTBSY => ErrnoClass::Caller,
        libc::EIO | libc::EREMOTEIO | libc::ENODATA | libc::EILSEQ | libc::EUCLEAN => ErrnoClass::Drive,
        libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM | libc::ENOLINK | libc::ESHUTDOWN => ErrnoClass::Drive,
        libc::ETIMEDOUT | libc::ETIME | libc::ESTALE | libc::ENOTCONN | libc::EBADE => ErrnoClass::Drive,
        libc::EBADF | libc::EFAULT | libc::EINVAL | libc::EOVERFLOW | libc::EOPNOTSUPP => ErrnoClass::Bug,
        libc::EISDIR | libc::ESPIPE | libc::ENOTDIR => ErrnoClass::Bug,
        _ => ErrnoClass::Unexpected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_own() {
        assert_eq!(classify(libc::EINTR), ErrnoClass::Retry);
        assert_eq!(classify(libc::EAGAIN), ErrnoClass::Retry);
        assert_eq!(classify(libc::ENOSPC), ErrnoClass::Caller);
        assert_eq!(classify(libc::EROFS), ErrnoClass::Caller);
        assert_eq!(classify(libc::EIO), ErrnoClass::Drive);
        assert_eq!(classify(libc::ENODEV), ErrnoClass::Drive);
        assert_eq!(classify(libc::EBADF), ErrnoClass::Bug);
        assert_eq!(classify(libc::EINVAL), ErrnoClass::Bug);
        assert_eq!(classify(libc::ECHILD), ErrnoClass::Unexpected);
        assert_eq!(classify(0), ErrnoClass::Unexpected);
    }
}
