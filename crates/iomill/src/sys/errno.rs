//! What an errno of an I/O means for the code that must act on it.
//!
//! Goals: one table, so that the results of all engines are judged alike. Non-goals: retrying; the drive queue does
//! that.

/// What to do about a failed I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Temporary: the same request may succeed at once or soon.
    Retry,
    /// The caller must act: no space, a quota, a file system mounted read-only.
    Caller,
    /// The drive, or the path to it, failed. Another try does not help.
    Drive,
    /// iomill asked for something invalid: a bad descriptor, address or alignment.
    Bug,
    /// Not known to come from reads, writes and syncs.
    Unexpected,
}

/// Classifies the errno (a positive number) of a read, a write or an `fdatasync`.
pub fn classify(errno: i32) -> Class {
    match errno {
        libc::EINTR | libc::EAGAIN => Class::Retry,
        // ENOBUFS and ENOMEM: the kernel was short of memory for this one request.
        libc::ENOBUFS | libc::ENOMEM => Class::Retry,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EROFS => Class::Caller,
        libc::EACCES | libc::EPERM | libc::ETXTBSY => Class::Caller,
        libc::EIO | libc::EREMOTEIO | libc::ENODATA | libc::EILSEQ | libc::EUCLEAN => Class::Drive,
        libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM | libc::ENOLINK | libc::ESHUTDOWN => Class::Drive,
        libc::ETIMEDOUT | libc::ETIME | libc::ESTALE | libc::ENOTCONN | libc::EBADE => Class::Drive,
        libc::EBADF | libc::EFAULT | libc::EINVAL | libc::EOVERFLOW | libc::EOPNOTSUPP => Class::Bug,
        libc::EISDIR | libc::ESPIPE | libc::ENOTDIR => Class::Bug,
        _ => Class::Unexpected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_own() {
        assert_eq!(classify(libc::EINTR), Class::Retry);
        assert_eq!(classify(libc::EAGAIN), Class::Retry);
        assert_eq!(classify(libc::ENOSPC), Class::Caller);
        assert_eq!(classify(libc::EROFS), Class::Caller);
        assert_eq!(classify(libc::EIO), Class::Drive);
        assert_eq!(classify(libc::ENODEV), Class::Drive);
        assert_eq!(classify(libc::EBADF), Class::Bug);
        assert_eq!(classify(libc::EINVAL), Class::Bug);
        assert_eq!(classify(libc::ECHILD), Class::Unexpected);
        assert_eq!(classify(0), Class::Unexpected);
    }
}
