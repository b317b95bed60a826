//! Rows, which are records of one length, by their numbers: `File::read_rows` and its future. [`RowId`] is the trait of
//! row numbers. Non-goals: rows longer than memory, and the contents of rows.

use std::fmt::Display;

use super::file::{File, check_sizes};
use super::transfer::Transfer;
use crate::error::{Error, Result};
use crate::pager::IoBuffer;

mod sealed {
    /// The library's view of a row number.
    pub trait Number: Copy {
        /// The number. A negative number becomes larger than the number of any row.
        fn number(self) -> u64;
    }
}

/// The number of a row: `usize`, `u64`, `i64`, `u32` or `i32`. No other type can implement this.
pub trait RowId: sealed::Number + Display + Send + Sync + 'static {}

macro_rules! row_ids {
    ($($id:ty as $wide:ty),*) => {$(
        impl sealed::Number for $id {
            #[inline(always)]
            fn number(self) -> u64 {
                <$wide>::from(self) as u64
            }
        }
        impl RowId for $id {}
    )*};
}

row_ids!(u64 as u64, i64 as i64, u32 as u64, i32 as i64);

impl sealed::Number for usize {
    #[inline(always)]
    fn number(self) -> u64 {
        self as u64
    }
}

impl RowId for usize {}

/// Rows of one length in a file.
#[derive(Clone, Copy)]
struct Rows {
    len: usize,
    /// The offset of row 0 in bytes.
    base: u64,
}

impl Rows {
    fn new(row_len: usize, base: u64) -> Result<Rows> {
        if row_len == 0 {
            return Err(Error::invalid("rows of 0 bytes", "a row has at least one byte"));
        }
        Ok(Rows { len: row_len, base })
    }

    /// The ranges of rows: offset and length in bytes. The numbers have been checked.
    #[inline(always)]
    fn places<I: RowId>(self, ids: &[I]) -> impl Iterator<Item = (u64, usize)> + Clone {
        ids.iter().map(move |id| (self.base.wrapping_add(id.number().wrapping_mul(self.len as u64)), self.len))
    }

    /// An error unless all rows are within the first `file_len` bytes.
    #[inline]
    fn check<I: RowId>(self, ids: &[I], name: &str, file_len: u64) -> Result<()> {
        let count = file_len.saturating_sub(self.base) / self.len as u64;
        match ids.iter().position(|id| id.number() >= count) {
            None => Ok(()),
            Some(position) => Err(self.refuse(position, &ids[position], name, count)),
        }
    }

    #[cold]
    fn refuse(self, position: usize, id: &dyn Display, name: &str, count: u64) -> Error {
        let Rows { len, base } = self;
        let what = format!("row {id} at position {position}");
        let rows = if count == 1 { "row" } else { "rows" };
        Error::invalid(
            what,
            format!("{name:?} has {count} {rows} of {len} bytes from offset {base} on, the first is row 0"),
        )
    }
}

impl File {
    /// Gathers rows by their numbers: reads row `ids[i]` into `out[i * row_len..][..row_len]`. Row 0 begins at the
    /// offset `base`; `base` and `row_len` are in bytes. One call keeps all drives busy. With a cache, one I/O reads
    /// all rows of a page, in any order and with repeats. In a long gather this is true within each million rows that
    /// miss.
    ///
    /// A number past the last whole row, or a negative number, is an error that names the number and its position in
    /// `ids`. Negative numbers do not count from the end. `out` must be as long as the rows together. After an error
    /// any byte of `out` may have changed.
    pub fn read_rows<I: RowId>(&self, out: &mut [u8], ids: &[I], row_len: usize, base: u64) -> Result<()> {
        let rows = Rows::new(row_len, base)?;
        check_sizes(ids.len().checked_mul(row_len), out.len(), "out")?;
        let file = self.here()?;
        let check = || rows.check(ids, file.name(), file.len());
        file.gather_into("read_rows", check, rows.places(ids), out)
    }

    /// [`File::read_rows`] as a future, like [`File::read_many_async`].
    pub fn read_rows_async<I: RowId, B: IoBuffer>(
        &self,
        mut out: B,
        ids: &[I],
        row_len: usize,
        base: u64,
    ) -> Transfer<B> {
        let begun = Rows::new(row_len, base).and_then(|rows| {
            check_sizes(ids.len().checked_mul(row_len), out.memory().len(), "out")?;
            Ok((rows, self.here()?))
        });
        match begun {
            Ok((rows, file)) => file.begin_gather(out, rows.places(ids), || rows.check(ids, file.name(), file.len())),
            Err(error) => Transfer::failed(error, out),
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn rows_are_checked_and_placed() {
        let rows = Rows::new(512, 100).unwrap();
        assert_eq!(rows.places(&[0i32, 3]).collect::<Vec<_>>(), [(100, 512), (1636, 512)]);
        assert!(rows.check(&[0u32, 2, 1], "f", 100 + 3 * 512 + 511).is_ok());
        let says = |result: Result<()>| result.unwrap_err().to_string();
        let error = says(rows.check(&[0i64, -1], "f", 1 << 40));
        assert!(error.contains("row -1 at position 1"), "{error}");
        let error = says(rows.check(&[0u64, 1, u64::MAX], "f", 100 + 512 + 511));
        assert!(error.contains("row 1 at position 1") && error.contains("\"f\" has 1 row of 512 bytes"), "{error}");
        assert_eq!(rows.places(&[3usize]).next(), Some((1636, 512)));
        assert!(rows.check(&[i32::MIN], "f", u64::MAX).is_err());
        assert!(rows.check(&[0i32], "f", 7).is_err(), "the file ends before the base");
        assert!(rows.check::<u32>(&[], "f", 0).is_ok());
        assert!(says(Rows::new(0, 0).map(drop)).contains("at least one byte"));
    }
}
