//! The program, as a user starts it: right rows, answers to wrong requests, and a short measurement.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_http-rows"))
}

fn run(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

/// A server that ends with the test.
struct Server(Child, String);

impl Server {
    fn start(file: &Path, reader: &str) -> Server {
        let mut command = program();
        command.arg("serve").arg(file).args(["--row-bytes", "100", "--port", "0", "--with", reader]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_once("http://").unwrap().1.split('/').next().unwrap().to_owned();
        Server(process, address)
    }

    /// The status and the body.
    fn get(&self, path: &str) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: rows\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        (std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap(), answer[body..].to_vec())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// 1,000 rows of 100 bytes, and some bytes after them.
fn file(directory: &tempfile::TempDir) -> std::path::PathBuf {
    let path = directory.path().join("rows");
    let mut bytes: Vec<u8> = (0..1000_u32).flat_map(|id| [id as u8; 100]).collect();
    bytes.extend([7; 30]);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn each_reader_serves_the_right_rows() {
    let directory = directory();
    let file = file(&directory);
    for reader in ["iomill", "tokio-fs"] {
        let server = Server::start(&file, reader);
        assert_eq!(server.get("/"), (200, b"1000\n".to_vec()));
        for id in [0, 40, 999] {
            assert_eq!(server.get(&format!("/rows/{id}")), (200, vec![id as u8; 100]), "{reader}");
        }
        assert_eq!(server.get("/rows/3,1,3"), (200, [[3; 100], [1; 100], [3; 100]].concat()), "{reader}");
    }
}

#[test]
fn wrong_requests_are_told_what_is_wrong() {
    let directory = directory();
    let server = Server::start(&file(&directory), "iomill");
    let says = |path: &str, status: u16, why: &str| {
        let (found, body) = server.get(path);
        let body = String::from_utf8(body).unwrap();
        assert!(found == status && body.contains(why), "{path}: {found} {body}");
    };
    says("/rows/1000", 404, "no row 1000: there are 1000");
    says("/rows/1,18446744073709551615", 404, "no row 18446744073709551615");
    says("/rows/seven", 400, "\"seven\" is not a list of numbers");
    says("/rows/1,,2", 400, "is not a list of numbers");
    says(&format!("/rows/{}", vec!["1"; 1025].join(",")), 400, "at most 1024");
    assert_eq!(server.get("/elsewhere").0, 404);
}

#[test]
fn what_cannot_be_served_is_an_error() {
    let directory = directory();
    let path = file(&directory);
    let path = path.to_str().unwrap();
    let says = |args: &[&str], code: i32, why: &str| {
        let output = run(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && said.contains(why), "{args:?}: {:?} {said}", output.status);
    };
    says(&["serve", "nowhere"], 1, "cannot open nowhere");
    says(&["serve", path, "--row-bytes", "1000000"], 1, "less than a row");
    says(&["serve", path, "--row-bytes", "0"], 2, "0");
    says(&["serve", path, "--with", "magic"], 2, "magic");
    says(&["bench", "--file", path], 1, "is another file");
    says(&["bench", "--seconds", "nan"], 2, "nan");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    says(&["serve", path, "--port", &port], 1, "choose another --port");
}

#[test]
fn a_short_measurement_reports_both_readers() {
    let directory = directory();
    let path = directory.path().join("made");
    let args = ["bench", "--mib", "512", "--seconds", "0.2", "--rounds", "1", "--clients", "4", "--json", "--file"];
    let output = run(&[&args[..], &[path.to_str().unwrap()]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |n: usize, key: &str| found[n][key].as_str().unwrap().to_owned();
    let rows: Vec<_> = (0..6).map(|n| (of(n, "load"), of(n, "reader"))).collect();
    let expected = [
        ("cold", "iomill"),
        ("cold", "tokio-fs"),
        ("cold", "ratio"),
        ("warm", "iomill"),
        ("warm", "tokio-fs"),
        ("warm", "ratio"),
    ];
    assert_eq!(rows, expected.map(|(load, reader)| (load.to_owned(), reader.to_owned())));
    for n in [0, 1, 3, 4] {
        assert!(found[n]["requests_per_s"].as_f64().unwrap() > 0.0, "{found}");
        assert!(found[n]["p50_us"].as_f64().unwrap() > 0.0, "{found}");
    }
}
