//! Trips of taxis as Parquet on the drives of an iomill array, and two questions in SQL.
//!
//! `judge-datafusion DIRECTORY...` makes an array in empty directories, best one on each SSD, and leaves the files
//! there.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use iomill::Array;
use iomill_object_store::v0_13::IomillStore;

/// A million trips in four files.
const TRIPS: &str = "COPY (
        SELECT value AS trip, value * 7919 % 263 AS zone, value * 104729 % 4000 + 250 AS cents
        FROM generate_series(1, 1000000)
    ) TO 'iomill://taxi/trips/' STORED AS PARQUET";

/// The zones with the most trips.
const BUSY: &str = "SELECT zone, count(*) AS trips, round(sum(cents) / 100.0) AS dollars
    FROM trips GROUP BY zone ORDER BY trips DESC, zone LIMIT 3";

/// A few trips: DataFusion reads only the pages of the files that can have them.
const SOME: &str = "SELECT trip, zone, cents FROM trips WHERE trip BETWEEN 777777 AND 777779 ORDER BY trip";

#[tokio::main]
async fn main() -> Result<()> {
    let drives: Vec<String> = std::env::args().skip(1).collect();
    ensure!(!drives.is_empty(), "no drives are given; run `judge-datafusion DIRECTORY...` with empty directories");
    let array = Array::create(&drives).context("no array can be made there")?;

    let session = SessionContext::new();
    let url = ObjectStoreUrl::parse("iomill://taxi")?;
    session.register_object_store(url.as_ref(), Arc::new(IomillStore::array(array.clone())));

    session.sql(TRIPS).await?.collect().await?;
    session.register_parquet("trips", "iomill://taxi/trips/", ParquetReadOptions::default()).await?;
    for question in [BUSY, SOME] {
        session.sql(question).await?.show().await?;
    }

    drop(session);
    Ok(array.close_async().await?)
}
