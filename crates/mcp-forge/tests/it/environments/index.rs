//! A package index of the test's own, on this machine.

use std::{fs, io::BufRead, path::Path, process::Child, time::Duration};

use mcp_forge::{
    config::{ExtraIndex, IndexUrl},
    packages::PackageName,
};

pub(crate) struct Index {
    port: u16,
    server: Child,
}

const SERVER: &str = "
import base64, http.server, sys
wanted = sys.argv[1] and 'Basic ' + base64.b64encode(sys.argv[1].encode()).decode()
class Handler(http.server.SimpleHTTPRequestHandler):
    def send_head(self):
        if wanted and self.headers.get('Authorization') != wanted:
            self.send_error(401)
            return None
        return super().send_head()
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
";

impl Index {
    /// Serves these kinds of wheels.
    pub(crate) async fn start(directory: &Path, kinds: &[&str]) -> Self {
        Self::start_for(directory, kinds, "").await
    }

    /// The same, pages and files, for those who have this user and password only.
    #[expect(clippy::disallowed_methods, reason = "tests start their index")]
    pub(crate) async fn start_for(directory: &Path, kinds: &[&str], login: &str) -> Self {
        fs::create_dir_all(directory).unwrap();
        super::hostile::make_wheels(directory, kinds);
        for name in super::names(directory) {
            let package = name.split('-').next().unwrap().replace('_', "-");
            let place = directory.join("simple").join(package);
            fs::create_dir_all(&place).unwrap();
            fs::rename(directory.join(&name), place.join(&name)).unwrap();
            let page = format!("<a href=\"{name}\">{name}</a>");
            fs::write(place.join("index.html"), page).unwrap();
        }
        let mut server = std::process::Command::new("/usr/bin/python3.11")
            .args(["-c", SERVER, login])
            .current_dir(directory)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // It listens when it says where.
        let mut said = std::io::BufReader::new(server.stdout.take().unwrap());
        let mut index = Self { port: 0, server };
        let said = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            said.read_line(&mut line).map(|_| line)
        });
        let said = tokio::time::timeout(Duration::from_mins(1), said).await;
        let line = said.expect("the index does not start").unwrap().unwrap();
        index.port = line.trim().parse().unwrap();
        index
    }

    /// As the configuration names it.
    pub(crate) fn named(&self, name: &str, packages: &[&str]) -> ExtraIndex {
        let packages = packages
            .iter()
            .map(|name| PackageName::parse(name).unwrap());
        ExtraIndex {
            name: name.to_owned(),
            url: self.url(""),
            packages: packages.collect(),
        }
    }

    /// Its address, with `user:password@` before the host.
    pub(crate) fn url(&self, login: &str) -> IndexUrl {
        IndexUrl::parse(&format!("http://{login}127.0.0.1:{}/simple", self.port)).unwrap()
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
