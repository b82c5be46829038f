//! What is printed when the regions are up: what runs where, and how to use it.

use super::{
    plan::{Cluster, RegionPlan, local},
    region::logs_of,
    view::without_password,
};
use crate::demo;
use anyhow::Result;
use serde_json::{Value, json};
use std::{io::Write, path::PathBuf};

/// A region that is up.
pub struct Announcement {
    /// Its ports and names.
    pub plan: RegionPlan,
    /// The URL of its database.
    pub database: String,
    /// Its files.
    pub state_dir: PathBuf,
    /// The command that opens a shell on its database; `None` if the database was there before.
    pub shell: Option<String>,
    /// The file of the link by which its database follows the master; `None` in the master region.
    pub link: Option<PathBuf>,
}

impl Announcement {
    fn role(&self) -> &'static str {
        if self.link.is_some() { "replica" } else { "master" }
    }

    /// A database that was there before has a password that is not ours to print.
    fn database(&self) -> String {
        if self.shell.is_some() { self.database.clone() } else { without_password(&self.database) }
    }

    fn clusters(&self) -> Vec<Value> {
        let cluster = |cluster: &Cluster| json!({ "name": cluster.name, "endpoint": local(cluster.router_port) });
        self.plan.clusters.iter().map(cluster).collect()
    }

    fn json(&self) -> Value {
        json!({
            "name": self.plan.name,
            "role": self.role(),
            "clusters": self.clusters(),
            "invalidator": local(self.plan.invalidator_port),
            "markers": self.plan.marker_port.map(local),
            "database": self.database(),
            "state_dir": self.state_dir,
            "link": self.link,
        })
    }

    fn print_clusters(&self, out: &mut impl Write) -> Result<()> {
        for cluster in &self.plan.clusters {
            let (name, endpoint, servers) =
                (cluster.name, local(cluster.router_port), cluster.servers.server_ports.len());
            let plural = if servers == 1 { "" } else { "s" };
            writeln!(out, "  cluster {name:<6} {endpoint}   ({servers} server{plural} and a gutter server behind it)")?;
        }
        Ok(())
    }
}

/// Prints one line of JSON. The master region is also at its top.
pub fn print_json(out: &mut impl Write, regions: &[Announcement]) -> Result<()> {
    let mut ready = regions[0].json();
    ready["ready"] = true.into();
    ready["regions"] = regions.iter().map(Announcement::json).collect();
    Ok(writeln!(out, "{ready}")?)
}

/// Prints the announcement for people.
pub fn print_text(out: &mut impl Write, regions: &[Announcement], is_demo: bool) -> Result<()> {
    match regions {
        [region] => print_region(out, region)?,
        regions => print_regions(out, regions)?,
    }
    writeln!(out, "{}", demo::invalidation_help(&regions[0].database, regions.len() > 1))?;
    if is_demo {
        writeln!(out, "The demo application uses the table demo_users.")?;
    }
    writeln!(out, "Ctrl-C stops all of it.\n")?;
    Ok(())
}

fn print_region(out: &mut impl Write, region: &Announcement) -> Result<()> {
    writeln!(out, "A region is up. Memcached endpoints:")?;
    region.print_clusters(out)?;
    writeln!(out, "Database   {}", region.database())?;
    let invalidator = local(region.plan.invalidator_port);
    writeln!(out, "Statistics {invalidator}   (of the invalidator; the endpoints serve their own)")?;
    writeln!(out, "Logs       {}", logs_of(&region.state_dir).display())?;
    Ok(())
}

fn print_regions(out: &mut impl Write, regions: &[Announcement]) -> Result<()> {
    writeln!(out, "{} regions are up. Memcached endpoints:", regions.len())?;
    for region in regions {
        writeln!(out, "\nRegion {} ({})", region.plan.name, region.role())?;
        region.print_clusters(out)?;
        writeln!(out, "  invalidator    {}   (statistics)", local(region.plan.invalidator_port))?;
        writeln!(out, "  database       {}", region.shell.as_ref().unwrap_or(&region.database))?;
        writeln!(out, "  logs           {}", logs_of(&region.state_dir).display())?;
        if let Some(link) = &region.link {
            writeln!(out, "  replication    stops by: echo cut > {}", link.display())?;
            writeln!(out, "                 goes on, with a delay, by: echo 500ms > {}", link.display())?;
        }
    }
    writeln!(
        out,
        "\nAll applications write to the database of region {}, and read that of their own.",
        regions[0].plan.name
    )?;
    writeln!(out, "Keys that begin with `regional:` are cached once for all clusters of a region.")?;
    writeln!(out, "Remote markers, keys that begin with `marker:`, are on a server of each region that evicts none.")?;
    Ok(())
}
