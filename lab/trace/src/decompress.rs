//! Plain streams from compressed ones. The first bytes of a stream show its form, and its name does not matter.
//!
//! Goals: concatenated streams (`cat a.gz b.gz`) are read to the end; checksums are checked; memory is bounded for any
//! stream. Non-goals: writing.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::BlockDecodingStrategy;
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

/// Buffer on either side of a decoder, in bytes.
const BUFFER_BYTES: usize = 128 << 10;

/// The largest dictionary of an xz stream, in KiB: `xz -9` takes 64 MiB.
const XZ_LIMIT_KIB: u32 = 256 << 10;

/// The largest window of a zstd stream, in bytes: `zstd --long` makes it, and `zstd -d` accepts it by default.
const ZSTD_WINDOW_BYTES: u64 = 128 << 20;

/// A plain stream.
pub(crate) type Plain = Box<dyn BufRead + Send>;

/// Unpacks a stream if it is packed. Also returns ` (gzip)` and so on for messages, or an empty text.
pub(crate) fn plain(source: impl Read + Send + 'static) -> io::Result<(Plain, &'static str)> {
    let mut source = BufReader::with_capacity(BUFFER_BYTES, source);
    let mut magic = Vec::new();
    source.by_ref().take(6).read_to_end(&mut magic)?;
    let (is_gzip, is_xz) = (magic.starts_with(&[0x1f, 0x8b]), magic.starts_with(b"\xfd7zXZ\0"));
    let is_zstd = magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || matches!(magic[..], [first, 0x2a, 0x4d, 0x18, ..] if first >> 4 == 5);
    let whole = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(magic).chain(source));
    Ok(if is_gzip {
        (buffered(MultiGzDecoder::new(whole)), " (gzip)")
    } else if is_xz {
        (buffered(XzReader::new_mem_limit(whole, true, XZ_LIMIT_KIB)), " (xz)")
    } else if is_zstd {
        (buffered(ZstdReader::new(whole)), " (zstd)")
    } else {
        (Box::new(whole), "")
    })
}

fn buffered(reader: impl Read + Send + 'static) -> Plain {
    Box::new(BufReader::with_capacity(BUFFER_BYTES, reader))
}

/// The frames of a zstd stream, one after the other.
struct ZstdReader<R> {
    source: R,
    decoder: FrameDecoder,
    /// A frame has begun and is not checked yet.
    in_frame: bool,
}

impl<R: BufRead> ZstdReader<R> {
    fn new(source: R) -> ZstdReader<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW_BYTES);
        ZstdReader { source, decoder, in_frame: false }
    }

    /// Goes to the next frame. Returns whether there is one.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? != length {
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a frame to skip is cut off"));
                    }
                }
                Err(error) => return Err(explained(error)),
            }
        }
        Ok(false)
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(stored), Some(found)) if stored != found => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a frame does not match its content"))
            }
            _ => Ok(()),
        }
    }
}

/// An error with a more helpful text than the decoder's own: it has the place where the data ended.
fn explained(error: FrameDecoderError) -> io::Error {
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(one) = cause {
        let is_end = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
        if one.downcast_ref::<io::Error>().is_some_and(is_end) {
            return io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut off");
        }
        cause = one.source();
    }
    io::Error::other(error)
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while !buf.is_empty() {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, strategy).map_err(explained)?;
            }
            let len = self.decoder.read(buf)?;
            if len > 0 {
                return Ok(len);
            }
            self.end_frame()?;
        }
        Ok(0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write;

    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    pub(crate) fn xz(bytes: &[u8]) -> Vec<u8> {
        let options = lzma_rust2::XzOptions::with_preset(1);
        let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn unpacked(bytes: Vec<u8>) -> io::Result<(Vec<u8>, &'static str)> {
        let (mut reader, packing) = plain(io::Cursor::new(bytes))?;
        let mut text = Vec::new();
        reader.read_to_end(&mut text)?;
        Ok((text, packing))
    }

    fn text() -> Vec<u8> {
        (0..60_000).flat_map(|line| format!("r,{},4096\n", line * 7919 % 100_003 * 512).into_bytes()).collect()
    }

    #[test]
    fn every_packing_is_known_by_its_content() {
        let text = text();
        type Pack = fn(&[u8]) -> Vec<u8>;
        for (pack, name) in [(gzip as Pack, " (gzip)"), (xz, " (xz)"), (zstd, " (zstd)"), (<[u8]>::to_vec, "")] {
            for text in [&text[..], b"x", b"abcdefg"] {
                assert_eq!(unpacked(pack(text)).unwrap(), (text.to_vec(), name));
            }
        }
        assert_eq!(unpacked(Vec::new()).unwrap(), (Vec::new(), ""));
        assert_eq!(unpacked(b"r,1".to_vec()).unwrap(), (b"r,1".to_vec(), ""));
    }

    #[test]
    fn streams_after_each_other_are_all_read() {
        let text = text();
        for pack in [gzip, xz, zstd] {
            let twice = [pack(&text), pack(b"last\n")].concat();
            assert_eq!(unpacked(twice).unwrap().0, [&text[..], b"last\n"].concat());
        }
        let skipped = [0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9];
        assert_eq!(unpacked([&skipped[..], &zstd(&text), &skipped].concat()).unwrap().0, text);
        assert!(unpacked([&zstd(&text), &skipped[..9]].concat()).is_err());
    }

    #[test]
    fn damage_is_an_error_and_never_a_shorter_trace() {
        let text = text();
        for pack in [gzip, xz, zstd] {
            let packed = pack(&text);
            for len in [7, packed.len() / 2, packed.len() - 1] {
                assert!(unpacked(packed[..len].to_vec()).is_err(), "cut at {len} of {}", packed.len());
            }
            let mut damaged = packed.clone();
            damaged[packed.len() / 2] ^= 0x10;
            assert!(unpacked(damaged).is_err());
        }
    }

    #[test]
    fn what_is_cut_off_is_said_in_words() {
        let packed = zstd(&vec![7; 100_000]);
        for len in [5, packed.len() / 2, packed.len() - 1] {
            let error = unpacked(packed[..len].to_vec()).unwrap_err();
            assert_eq!(error.to_string(), "it is cut off", "{len} of {}", packed.len());
        }
    }
}
