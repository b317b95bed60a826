//! Writes a made trace of reads of rows as CSV on the standard output: `rows LAW ROW_BYTES ROWS REQUESTS`.
//!
//! LAW is `uniform`, or `zipf` with exponent 0.99. Rows are at random places: a popular row's neighbours are not
//! popular. Two runs with the same arguments write the same trace.
//!
//! `cargo run --release --manifest-path lab/Cargo.toml -p iomill-trace --example rows -- zipf 512 1000000 4000000 > rows.csv`

use std::error::Error;
use std::io::{BufWriter, Write};

/// Exponent of the zipf law. It is the usual one in measurements of key-value stores.
const EXPONENT: f64 = 0.99;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [law, row_bytes, rows, requests] = &arguments[..] else {
        return Err("give a law (uniform or zipf), the bytes of a row, and the numbers of rows and of requests".into());
    };
    let exponent = match law.as_str() {
        "uniform" => 0.0,
        "zipf" => EXPONENT,
        other => return Err(format!("the law {other:?} is not known; give uniform or zipf").into()),
    };
    let (row_bytes, rows, requests): (u64, usize, u64) = (row_bytes.parse()?, rows.parse()?, requests.parse()?);
    let mut random = fastrand::Rng::with_seed(1);
    let mut places: Vec<u64> = (0..rows as u64).collect();
    random.shuffle(&mut places);
    // The sum of the weights of each row and of all more popular ones.
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=rows)
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect();
    let mut out = BufWriter::new(std::io::stdout().lock());
    for _ in 0..requests {
        let point = random.f64() * sum;
        let rank = sums.partition_point(|&sum| sum <= point).min(rows - 1);
        writeln!(out, "r,{},{row_bytes}", places[rank] * row_bytes)?;
    }
    Ok(out.flush()?)
}
