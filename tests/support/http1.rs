//! A client of HTTP/1.1 that writes what it is told, and reads answers with suspicion.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::{World, raw};

/// Nothing a test waits for takes longer.
const LIMIT: Duration = Duration::from_secs(4);

/// Status and body of what a plain port answers; status 0 when nothing does.
pub async fn get_plain(address: SocketAddr, path: &str) -> (u16, String) {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.map(|_| text)
    };
    match timeout(LIMIT, asked).await.unwrap() {
        Err(error) => (0, error.to_string()),
        Ok(text) => {
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
            (head.split(' ').nth(1).unwrap_or("0").parse().unwrap(), body.to_owned())
        }
    }
}

/// One connection.
pub struct Wire {
    tls: TlsStream<TcpStream>,
    buffer: Vec<u8>,
}

/// An answer, its body unframed.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With a goodbye of TLS.
    Clean,
    /// Without one: an end of file of TCP, which some take for the end of an answer.
    Cut,
    /// By a reset of TCP, which nobody does.
    Reset,
}

impl End {
    fn by(error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::ConnectionReset { Self::Reset } else { Self::Cut }
    }
}

impl Wire {
    /// Connects to the engine of a world.
    pub async fn connect(world: &World) -> Self {
        Self::dial(world.address(), world.pki().ca_pem()).await
    }

    /// Connects to that address.
    pub async fn dial(address: SocketAddr, ca_pem: &str) -> Self {
        let tls = raw::handshake_for(address, ca_pem, b"http/1.1").await;
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        Self { tls, buffer: Vec::new() }
    }

    /// Writes bytes; what the other side refuses to take is its matter.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        if self.tls.write_all(bytes.as_ref()).await.is_ok() {
            self.tls.flush().await.ok();
        }
    }

    /// Reads more; false at a clean end.
    async fn fill(&mut self) -> Result<bool, std::io::Error> {
        let count = timeout(LIMIT, self.tls.read_buf(&mut self.buffer)).await.expect("no bytes came")?;
        Ok(count > 0)
    }

    /// Reads a head, final or informational.
    pub async fn head(&mut self) -> Result<(u16, String), End> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                let head = String::from_utf8(head).unwrap();
                assert!(head.starts_with("HTTP/1.1 ") && head.as_bytes()[12] == b' ', "{head}");
                return Ok((head[9..12].parse().unwrap(), head));
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), End> {
        match self.fill().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(End::Clean),
            Err(error) => Err(End::by(&error)),
        }
    }

    /// Reads that many bytes.
    pub async fn exactly(&mut self, count: usize) -> Result<Vec<u8>, End> {
        while self.buffer.len() < count {
            self.more().await?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// Reads one chunk; empty when it was the last one, whose trailers follow.
    pub async fn chunk(&mut self) -> Result<Vec<u8>, End> {
        let line = self.line().await?;
        let count = usize::from_str_radix(&line, 16).unwrap();
        let content = self.exactly(count).await?;
        if count > 0 {
            assert_eq!(self.line().await?, "");
        }
        Ok(content)
    }

    /// Reads a line, without its end.
    pub async fn line(&mut self) -> Result<String, End> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            self.more().await?;
        }
    }

    /// Reads a whole answer to something else than HEAD; trailers go to the end of `head`.
    pub async fn answer(&mut self) -> Result<Answer, End> {
        let (status, mut head) = self.head().await?;
        let mut body = Vec::new();
        if header(&head, "transfer-encoding") == Some("chunked") {
            assert_eq!(header(&head, "content-length"), None);
            loop {
                let chunk = self.chunk().await?;
                if chunk.is_empty() {
                    break;
                }
                body.extend(chunk);
            }
            loop {
                let line = self.line().await?;
                if line.is_empty() {
                    break;
                }
                head.push_str(&line);
                head.push_str("\r\n");
            }
        } else if let Some(length) = header(&head, "content-length") {
            body = self.exactly(length.parse().unwrap()).await?;
        } else if status >= 200 && status != 204 && status != 304 {
            panic!("no framing: {head}");
        }
        Ok(Answer { status, head, body })
    }

    /// Waits for the end, and for nothing in front of it.
    pub async fn end(&mut self) -> End {
        match self.fill().await {
            Ok(true) => panic!("more came: {:?}", String::from_utf8_lossy(&self.buffer)),
            Ok(false) => End::Clean,
            Err(error) => End::by(&error),
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().filter_map(|line| line.split_once(": ")).find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}
