//! [`Server`]: a server of one object by HTTP/1.1, on sockets, with answers that a test chooses. Non-goals: requests
//! that a cache does not send.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A GET or a head.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub head: bool,
    /// The number of earlier requests of its kind.
    pub nth: u64,
}

/// The treatment of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    Pass,
    Status(u16),
    /// The answer is late.
    After(Duration),
    /// No answer, and the connection stays open.
    Stall,
    /// Half of the body, and then nothing.
    StallInBody,
    /// The connection ends this number of bytes before the end of the body.
    Cut(usize),
    /// The connection ends before the answer begins.
    Close,
    /// The answer is no HTTP.
    Noise,
    /// A body of this length more, or less, than its range, in a length that fits it, or in chunks.
    Body {
        longer: i64,
        chunked: bool,
    },
    /// Bytes behind the answer, which look like another one.
    Behind,
    /// `Content-Range` begins this much later.
    Elsewhere(u64),
    /// `Content-Range` says that the object has this length.
    Total(u64),
    /// No `Content-Range`.
    NoRange,
    /// The whole object, with status 200.
    Whole,
    /// Conditions are ignored, and this is the etag.
    ETag(Option<String>),
    /// The object is another one from now on, and conditions are checked, or not.
    Replaced {
        content: Vec<u8>,
        conditions: bool,
    },
}

type Script = Box<dyn FnMut(Ask) -> Act + Send>;

struct State {
    content: Vec<u8>,
    version: u64,
    script: Script,
    gets: u64,
    heads: u64,
}

/// See the module. Its threads end with the process.
pub struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct Request {
    head: bool,
    range: Option<Range<u64>>,
    if_match: Option<String>,
}

impl Server {
    pub fn start(content: Vec<u8>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { content, version: 1, script: Box::new(|_| Act::Pass), gets: 0, heads: 0 };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // An error of a connection that the client has left does not count.
                std::thread::spawn(move || drop(served(&stream, &state)));
            }
        });
        Server { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn script(&self, script: impl FnMut(Ask) -> Act + Send + 'static) {
        self.state.lock().unwrap().script = Box::new(script);
    }

    pub fn replace(&self, content: Vec<u8>) {
        let mut state = self.state.lock().unwrap();
        state.content = content;
        state.version += 1;
    }

    pub fn content(&self) -> Vec<u8> {
        self.state.lock().unwrap().content.clone()
    }

    /// The number of requests.
    pub fn asked(&self) -> u64 {
        let state = self.state.lock().unwrap();
        state.gets + state.heads
    }
}

/// `None` at the end of a connection.
fn request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut request = Request { head: line.starts_with("HEAD"), range: None, if_match: None };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            return Ok(Some(request));
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("if-match", value) => request.if_match = Some(value.to_owned()),
            ("range", value) => {
                let (first, last) = value.strip_prefix("bytes=").and_then(|range| range.split_once('-')).unwrap();
                request.range = Some(first.parse().unwrap()..last.parse::<u64>().unwrap() + 1);
            }
            _ => {}
        }
    }
}

fn served(stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = request(&mut reader)? {
        let (act, content, e_tag) = {
            let mut state = state.lock().unwrap();
            let counter = if request.head { &mut state.heads } else { &mut state.gets };
            let ask = Ask { head: request.head, nth: *counter };
            *counter += 1;
            let act = (state.script)(ask);
            if let Act::Replaced { content, .. } = &act {
                (state.content, state.version) = (content.clone(), state.version + 1);
            }
            (act, state.content.clone(), format!("\"v{}\"", state.version))
        };
        let ends = answer(&mut &*stream, &request, &act, &content, e_tag)?;
        if ends {
            return Ok(());
        }
        if matches!(act, Act::Stall | Act::StallInBody) {
            // Until the client closes it.
            let mut rest = Vec::new();
            reader.read_to_end(&mut rest)?;
            return Ok(());
        }
    }
    Ok(())
}

/// Answers a request. Whether the connection ends.
fn answer(out: &mut impl Write, request: &Request, act: &Act, content: &[u8], e_tag: String) -> std::io::Result<bool> {
    let (mut e_tag, mut conditions) = (Some(e_tag), true);
    match act {
        Act::Stall => return Ok(false),
        Act::Close => return Ok(true),
        Act::Noise => return out.write_all(b"\x00\xffno HTTP\r\n\r\n").map(|()| true),
        Act::Status(code) => return empty(out, *code).map(|()| false),
        Act::After(time) => std::thread::sleep(*time),
        Act::ETag(other) => (e_tag, conditions) = (other.clone(), false),
        Act::Replaced { conditions: looked_at, .. } => conditions = *looked_at,
        _ => {}
    }
    if conditions && request.if_match.as_ref().is_some_and(|wanted| Some(wanted) != e_tag.as_ref()) {
        return empty(out, 412).map(|()| false);
    }
    let len = content.len() as u64;
    let range = request.range.clone().filter(|_| *act != Act::Whole);
    if range.as_ref().is_some_and(|range| range.start >= len) {
        return empty(out, 416).map(|()| false);
    }
    let mut lines = format!("HTTP/1.1 {}\r\n", if range.is_some() { "206 Partial Content" } else { "200 OK" });
    let sent = range.as_ref().map_or(0..len, |range| range.start..range.end.min(len));
    if range.is_some() && *act != Act::NoRange {
        let shift = if let Act::Elsewhere(by) = act { *by } else { 0 };
        let total = if let Act::Total(total) = act { *total } else { len };
        let (first, last) = (sent.start + shift, sent.end - 1 + shift);
        write!(lines, "Content-Range: bytes {first}-{last}/{total}\r\n").unwrap();
    }
    if let Some(e_tag) = e_tag {
        write!(lines, "ETag: {e_tag}\r\n").unwrap();
    }
    let mut body = content[sent.start as usize..sent.end as usize].to_vec();
    if let (Act::Body { longer, .. }, false) = (act, request.head) {
        body.resize((body.len() as i64 + longer).max(0) as usize, 7);
    }
    sent_body(out, request, act, lines, &body)
}

fn sent_body(
    out: &mut impl Write,
    request: &Request,
    act: &Act,
    mut lines: String,
    body: &[u8],
) -> std::io::Result<bool> {
    if matches!(act, Act::Body { chunked: true, .. }) && !request.head {
        lines += "Transfer-Encoding: chunked\r\n\r\n";
        out.write_all(lines.as_bytes())?;
        for chunk in body.chunks(10_000) {
            write!(out, "{:x}\r\n", chunk.len())?;
            out.write_all(chunk)?;
            out.write_all(b"\r\n")?;
        }
        return out.write_all(b"0\r\n\r\n").map(|()| false);
    }
    write!(lines, "Content-Length: {}\r\n\r\n", body.len()).unwrap();
    out.write_all(lines.as_bytes())?;
    if request.head {
        return Ok(false);
    }
    match act {
        Act::Cut(less) => out.write_all(&body[..body.len().saturating_sub(*less)]).map(|()| true),
        Act::StallInBody => out.write_all(&body[..body.len() / 2]).map(|()| false),
        Act::Behind => {
            out.write_all(body)?;
            let wrong = [7; 100];
            let lie = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99/{}\r\nETag: \"v1\"\r\nContent-Length: 100\r\n\r\n",
                body.len()
            );
            out.write_all(lie.as_bytes())?;
            out.write_all(&wrong).map(|()| false)
        }
        _ => out.write_all(body).map(|()| false),
    }
}

fn empty(out: &mut impl Write, code: u16) -> std::io::Result<()> {
    write!(out, "HTTP/1.1 {code} Status\r\nContent-Length: 0\r\n\r\n")
}
