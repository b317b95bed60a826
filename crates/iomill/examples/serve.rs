//! A server of rows on tokio: clients send numbers of rows, and each request is one gather. The runtime waits for
//! drives and sockets.
//!
//! `cargo run -p iomill --example serve [DIRECTORY]`

use std::net::SocketAddr;
use std::path::PathBuf;

use iomill::{Array, File, FileOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROWS: u64 = 100_000;
const ROW_BYTES: usize = 128;
/// More rows of a request are refused, so that no client chooses how much memory a request takes.
const REQUEST_ROWS: u32 = 4096;

/// Row `n` begins with `n`.
fn row(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(ROW_BYTES / 8)
}

/// Answers a client until it goes. A request is a count of 4 bytes, and as many numbers of 8 bytes. The answer is the
/// rows.
async fn serve(mut client: TcpStream, file: File) -> Result<()> {
    while let Ok(count) = client.read_u32_le().await {
        if count > REQUEST_ROWS {
            return Err(format!("{count} rows in a request: at most {REQUEST_ROWS}").into());
        }
        let mut ids = Vec::with_capacity(count as usize);
        for _ in 0..count {
            ids.push(client.read_u64_le().await?);
        }
        let rows = file.read_rows_async(vec![0; ids.len() * ROW_BYTES], &ids, ROW_BYTES, 0).await?;
        client.write_all(&rows).await?;
    }
    Ok(())
}

async fn accept(listener: TcpListener, file: File) -> Result<()> {
    loop {
        let (client, address) = listener.accept().await?;
        let file = file.clone();
        tokio::spawn(async move {
            // A wrong request ends its connection, and not the server.
            if let Err(error) = serve(client, file).await {
                eprintln!("{address}: {error}");
            }
        });
    }
}

/// Asks for rows three times.
async fn ask(server: SocketAddr, seed: u64) -> Result<()> {
    let mut stream = TcpStream::connect(server).await?;
    for request in 0..3 {
        let ids: Vec<u64> = (0..1000).map(|n| (seed + request * 1000 + n) * 7919 % ROWS).collect();
        let mut bytes = (ids.len() as u32).to_le_bytes().to_vec();
        bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        stream.write_all(&bytes).await?;
        let mut rows = vec![0; ids.len() * ROW_BYTES];
        stream.read_exact(&mut rows).await?;
        assert!(ids.iter().zip(rows.chunks(ROW_BYTES)).all(|(id, bytes)| bytes == row(*id)));
    }
    Ok(())
}

async fn run(drives: &[PathBuf]) -> Result<()> {
    iomill::drive_by_tokio(&tokio::runtime::Handle::current())?;
    let array = Array::create(drives)?;
    let file = array.create_file_async("rows", &FileOptions::new()).await?;
    file.write_at_async((0..ROWS).flat_map(row).collect::<Vec<u8>>(), 0).await?;
    file.sync_async().await?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(accept(listener, file));
    let clients: Vec<_> = (0..16).map(|seed| tokio::spawn(ask(address, seed * 10_000))).collect();
    for client in clients {
        client.await??;
    }
    println!("16 clients, 48 gathers of 1,000 rows");
    server.abort();
    Ok(array.close_async().await?)
}

fn main() -> Result<()> {
    let base = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let base = base.join(format!("iomill-example-{}", std::process::id()));
    let drives = [base.join("ssd0"), base.join("ssd1")];
    drives.iter().try_for_each(std::fs::create_dir_all)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(run(&drives));
    drop(runtime);
    std::fs::remove_dir_all(&base)?;
    result
}
