//! The load: some connections, each with one request at a time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use fastrand::Rng;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::data;

/// Which rows are asked for, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests in flight.
    pub clients: u64,
    /// Rows of a request.
    pub ids: usize,
    /// The rows from the first one on, each as often as any other.
    pub rows: u64,
    /// The time of the load.
    pub time: Duration,
}

/// What the clients saw: times of requests in nanoseconds.
pub type Times = Histogram<u64>;

/// Asks for rows at random. `seed` chooses which.
pub async fn run(server: SocketAddr, load: Load, seed: u64) -> Result<Times> {
    let mut clients = JoinSet::new();
    for n in 0..load.clients {
        clients.spawn(client(server, load, Rng::with_seed(seed << 32 | n)));
    }
    let mut times = empty()?;
    while let Some(ended) = clients.join_next().await {
        times += ended??;
    }
    Ok(times)
}

/// Asks for each row once, in order.
pub async fn warm(server: SocketAddr, rows: u64) -> Result<()> {
    let mut connection = connect(server).await?;
    for first in (0..rows).step_by(64) {
        let ids: Vec<u64> = (first..rows.min(first + 64)).collect();
        get(&mut connection, &ids).await?;
    }
    Ok(())
}

async fn client(server: SocketAddr, load: Load, mut random: Rng) -> Result<Times> {
    let mut connection = connect(server).await?;
    let mut times = empty()?;
    let end = Instant::now() + load.time;
    while Instant::now() < end {
        let ids: Vec<u64> = (0..load.ids).map(|_| random.u64(..load.rows)).collect();
        let begin = Instant::now();
        let body = get(&mut connection, &ids).await?;
        times.saturating_record(begin.elapsed().as_nanos() as u64);
        check(&ids, &body)?;
    }
    Ok(times)
}

async fn connect(server: SocketAddr) -> Result<SendRequest<Empty<Bytes>>> {
    let stream = TcpStream::connect(server).await.with_context(|| format!("no server at {server}"))?;
    stream.set_nodelay(true)?;
    let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with an error if the server closes the connection. The request that waits for it has that error.
    tokio::spawn(connection);
    Ok(requests)
}

async fn get(connection: &mut SendRequest<Empty<Bytes>>, ids: &[u64]) -> Result<Bytes> {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    let request = Request::get(format!("/rows/{}", ids.join(","))).header("host", "rows").body(Empty::new())?;
    connection.ready().await?;
    let answer = connection.send_request(request).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    ensure!(status == StatusCode::OK, "{status}: {}", String::from_utf8_lossy(&body).trim_end());
    Ok(body)
}

/// The whole length, and the first word of each row: to make the others would take more time than the request.
fn check(ids: &[u64], body: &[u8]) -> Result<()> {
    let is_right = |(id, found): (&u64, &[u8])| found[..8] == data::first_word(*id).to_le_bytes();
    let all = body.len() == ids.len() * data::ROW_BYTES && ids.iter().zip(body.chunks(data::ROW_BYTES)).all(is_right);
    ensure!(all, "wrong bytes for the rows {ids:?}");
    Ok(())
}

/// From 1 us to 60 s, to three digits.
fn empty() -> Result<Times> {
    Ok(Histogram::new_with_bounds(1_000, 60_000_000_000, 3)?)
}
