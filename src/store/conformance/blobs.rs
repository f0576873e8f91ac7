//! The cases about [`Blobs`](crate::store::Blobs).

#![expect(clippy::unwrap_used, reason = "a failed case panics, and its caller is a test")]

use bytes::Bytes;

use super::{Bench, text};
use crate::api::Uid;
use crate::store::{Append, BLOB_CHUNK_BYTES_MAX, BlobId, Error, Guard, Op, Stream};

fn append(blob: &BlobId, offset: u64, bytes: &[u8]) -> Append {
    Append { blob: blob.clone(), offset, bytes: Bytes::copy_from_slice(bytes) }
}

pub(super) async fn blobs_grow_by_appends_and_are_read_in_ranges(bench: Bench) {
    let blob = BlobId { owner: bench.owner(), stream: Stream::Transcript };
    let other = BlobId { owner: blob.owner.clone(), stream: Stream::Response };
    assert_eq!(bench.blobs.len(&blob).await.unwrap(), 0);
    assert_eq!(bench.blobs.read(&blob, 0, 10).await.unwrap(), Bytes::new());
    let mut whole = Vec::new();
    for size in [1, 700, 2, BLOB_CHUNK_BYTES_MAX, 64, BLOB_CHUNK_BYTES_MAX] {
        let bytes: Vec<u8> = (0..size).map(|n| u8::try_from((n + size) % 251).unwrap()).collect();
        let appends =
            vec![append(&blob, whole.len() as u64, &bytes), append(&other, 0, b"response")];
        bench.blobs.append(appends).await.unwrap();
        whole.extend(bytes);
        assert_eq!(bench.blobs.len(&blob).await.unwrap(), whole.len() as u64);
    }
    assert_eq!(bench.blobs.len(&other).await.unwrap(), 8);
    let read = bench.blobs.read(&blob, 0, whole.len() + 1).await.unwrap();
    assert!(read == whole);
    for (offset, max) in [(0, 1), (1, 700), (650, 200), (702, 70_000), (60_000, 10_000)] {
        let read = bench.blobs.read(&blob, offset as u64, max).await.unwrap();
        assert!(read == whole[offset..offset + max], "{offset} {max}");
    }
    let end = whole.len() as u64;
    assert_eq!(bench.blobs.read(&blob, end - 3, 10).await.unwrap().len(), 3);
    assert_eq!(bench.blobs.read(&blob, end, 10).await.unwrap(), Bytes::new());
    assert_eq!(bench.blobs.read(&blob, end + 5, 10).await.unwrap(), Bytes::new());
    assert_eq!(bench.blobs.read(&blob, 0, 0).await.unwrap(), Bytes::new());
}

pub(super) async fn a_repeated_append_is_done_and_another_is_a_conflict(bench: Bench) {
    let blob = BlobId { owner: bench.owner(), stream: Stream::Response };
    bench.blobs.append(vec![append(&blob, 0, b"hello ")]).await.unwrap();
    bench.blobs.append(vec![append(&blob, 6, b"world")]).await.unwrap();
    // Again, and in other pieces: it is there already.
    bench.blobs.append(vec![append(&blob, 6, b"world")]).await.unwrap();
    bench.blobs.append(vec![append(&blob, 3, b"lo wo")]).await.unwrap();
    for (offset, bytes) in [(6, &b"earth"[..]), (8, b"rld!"), (12, b"!"), (0, b"x")] {
        let refused = bench.blobs.append(vec![append(&blob, offset, bytes)]).await;
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{offset}");
    }
    let whole = bench.blobs.read(&blob, 0, 100).await.unwrap();
    assert_eq!(text(&whole), "hello world");
}

pub(super) async fn appends_are_done_whole_or_not_at_all(bench: Bench) {
    let good = BlobId { owner: bench.owner(), stream: Stream::Transcript };
    let bad = BlobId { owner: bench.owner(), stream: Stream::Transcript };
    let appends = vec![append(&good, 0, b"a"), append(&good, 1, b"b"), append(&bad, 7, b"c")];
    let refused = bench.blobs.append(appends).await;
    assert!(matches!(refused, Err(Error::Conflict { .. })));
    assert_eq!(bench.blobs.len(&good).await.unwrap(), 0);
    let appends = vec![append(&good, 0, b"a"), append(&good, 1, b"b"), append(&bad, 0, b"c")];
    bench.blobs.append(appends).await.unwrap();
    assert_eq!(text(&bench.blobs.read(&good, 0, 9).await.unwrap()), "ab");
}

pub(super) async fn blobs_go_with_their_owner(bench: Bench) {
    let (gone, kept) = (bench.owner(), bench.owner());
    let streams = [Stream::Prompt, Stream::Transcript, Stream::Response];
    for owner in [&gone, &kept] {
        for stream in streams {
            let blob = BlobId { owner: owner.clone(), stream };
            bench.blobs.append(vec![append(&blob, 0, b"text")]).await.unwrap();
        }
    }
    bench.write("turn", "1").await;
    let ops = || vec![bench.delete("turn"), Op::DropBlobs { owner: gone.clone() }];
    let refused = bench.commit(vec![Guard::Absent(bench.key("turn"))], ops()).await;
    assert!(matches!(refused, Err(Error::Conflict { .. })));
    let prompt = BlobId { owner: gone.clone(), stream: Stream::Prompt };
    assert_eq!(bench.blobs.len(&prompt).await.unwrap(), 4);
    bench.commit(Vec::new(), ops()).await.unwrap();
    for stream in streams {
        let blob = |owner: &Uid| BlobId { owner: owner.clone(), stream };
        assert_eq!(bench.blobs.len(&blob(&gone)).await.unwrap(), 0);
        assert_eq!(bench.blobs.read(&blob(&gone), 0, 9).await.unwrap(), Bytes::new());
        assert_eq!(bench.blobs.len(&blob(&kept)).await.unwrap(), 4);
    }
    // It may begin anew, from nothing.
    bench.blobs.append(vec![append(&prompt, 0, b"new")]).await.unwrap();
    assert_eq!(text(&bench.blobs.read(&prompt, 0, 9).await.unwrap()), "new");
}

pub(super) async fn the_sweep_leaves_owned_blobs(bench: Bench) {
    let owners: Vec<Uid> = (0..100).map(|_| bench.owner()).collect();
    for owner in &owners {
        let blob = BlobId { owner: owner.clone(), stream: Stream::Prompt };
        bench.blobs.append(vec![append(&blob, 0, b"text")]).await.unwrap();
    }
    let lost: Vec<Uid> = owners.iter().step_by(2).cloned().collect();
    let is_owned = |owner: &Uid| !lost.contains(owner);
    let swept = bench.blobs.sweep(&is_owned).await.unwrap();
    assert_eq!(swept, 50);
    for owner in &owners {
        let blob = BlobId { owner: owner.clone(), stream: Stream::Prompt };
        let expected = if lost.contains(owner) { 0 } else { 4 };
        assert_eq!(bench.blobs.len(&blob).await.unwrap(), expected);
    }
    assert_eq!(bench.blobs.sweep(&is_owned).await.unwrap(), 0);
}
