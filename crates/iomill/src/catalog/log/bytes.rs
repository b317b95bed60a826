//! Reading numbers and text from untrusted bytes. Non-goals: their meaning.

/// The bytes that are still to be read. Each method takes some from the front, or returns `None` and takes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Reads `bytes` from the start.
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All that is left.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// A number of 2 bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number of 4 bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of 8 bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of 8 bytes that grows by one at a time. No array brings it to 2^63, so `None` for a greater one: one more
    /// is then never an overflow, whatever the bytes.
    pub fn count(&mut self) -> Option<u64> {
        self.u64().filter(|count| i64::try_from(*count).is_ok())
    }

    /// 16 bytes as they are.
    pub fn id(&mut self) -> Option<[u8; 16]> {
        self.array()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_taken() {
        let mut cursor = Cursor::new(&[1, 2, 3]);
        assert_eq!(cursor.u32(), None);
        assert_eq!(cursor.u16(), Some(0x0201));
        assert_eq!(cursor.take(2), None);
        assert_eq!((cursor.rest(), cursor.u8(), cursor.u8(), cursor.is_empty()), (&[3][..], Some(3), None, true));
    }
}
