//! TEMP
use bytes::Bytes;
/// x
#[derive(Default, Debug)]
pub struct Ring(std::sync::Mutex<Vec<u8>>);
impl Ring {
    /// x
    pub fn snapshot(&self) -> Bytes {
        Bytes::from(self.0.lock().map(|v| v.clone()).unwrap_or_default())
    }
    /// x
    pub fn tail_text(&self, max: usize) -> String {
        let b = self.snapshot();
        let s = b.len().saturating_sub(max);
        String::from_utf8_lossy(&b[s..]).trim().to_owned()
    }
    /// x
    pub async fn drain(&self, mut from: Box<dyn tokio::io::AsyncRead + Send + Unpin>) {
        use tokio::io::AsyncReadExt;
        let mut buf = vec![0; 8192];
        while let Ok(n) = from.read(&mut buf).await {
            if n == 0 {
                return;
            }
            if let Ok(mut v) = self.0.lock() {
                v.extend_from_slice(&buf[..n]);
                let l = v.len();
                if l > 131072 {
                    v.drain(..l - 131072);
                }
            }
        }
    }
}
