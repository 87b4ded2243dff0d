//! A TCP proxy for tests, which stops to read or cuts its connections. While its server refuses connections, it accepts and closes them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// A proxy before a server. Its threads end when both sides have closed their connections.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    is_frozen: Mutex<bool>,
    changed: Condvar,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { server, is_frozen: Mutex::default(), changed: Condvar::new(), sockets: Mutex::default() });
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(of_thread.server)) else { continue };
                of_thread.sockets.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                for (from, to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
                    let shared = of_thread.clone();
                    std::thread::spawn(move || shared.pump(from, to));
                }
            }
        });
        Self { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops to read from both sides, or reads again.
    pub fn freeze(&self, is_frozen: bool) {
        *self.shared.is_frozen.lock().unwrap() = is_frozen;
        self.shared.changed.notify_all();
    }

    /// Closes all connections.
    pub fn cut(&self) {
        for socket in self.shared.sockets.lock().unwrap().drain(..) {
            // A connection that has ended already cannot be shut down.
            let _closed = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let frozen = self.is_frozen.lock().unwrap();
            drop(self.changed.wait_while(frozen, |is_frozen| *is_frozen).unwrap());
            match from.read(&mut buffer) {
                Ok(n_bytes @ 1..) if to.write_all(&buffer[..n_bytes]).is_ok() => {}
                _ => break,
            }
        }
        let _closed = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
