//! An HTTP server of rows in a file, by iomill or by `tokio::fs`, and a load that compares the two. `README.md` says
//! how to use it.

mod bench;
mod client;
mod data;
mod server;
mod source;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use tokio::net::TcpListener;

use source::{Reader, Source};

/// Serves rows of a file by HTTP.
#[derive(Debug, Parser)]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Serve the rows of a file on 127.0.0.1
    Serve(Serve),
    /// Measure the server with each reader, one after the other, in rounds
    Bench(bench::Bench),
}

#[derive(Debug, Args)]
struct Serve {
    /// Any file; its rows follow each other
    file: PathBuf,
    /// Bytes of a row
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    row_bytes: u32,
    /// What reads the file
    #[arg(long = "with", value_enum, default_value_t = Reader::Iomill)]
    reader: Reader,
    /// Memory for iomill's cache, in MiB
    #[arg(long, default_value_t = 256)]
    cache_mib: u64,
    /// Port; 0 takes one that is free
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Threads that serve
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
}

fn main() -> ExitCode {
    let done = match Command::parse().what {
        What::Serve(serve) => run(serve),
        What::Bench(bench) => bench.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("http-rows: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(serve: Serve) -> Result<()> {
    let threads = usize::from(serve.threads);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    // A task, because the thread of `main` would serve beside the others.
    let serving = runtime.spawn(async move {
        let source = Source::open(&serve.file, serve.row_bytes as usize, serve.reader, serve.cache_mib << 20)?;
        let listener = TcpListener::bind(("127.0.0.1", serve.port)).await;
        let listener =
            listener.with_context(|| format!("cannot listen on port {}: choose another --port", serve.port))?;
        println!("{} rows at http://{}/rows/0", source.rows(), listener.local_addr()?);
        server::serve(source, listener).await
    });
    runtime.block_on(serving)?
}
