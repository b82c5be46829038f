"""A fault injector: real processes and a real database, a seeded schedule of faults, and a checker of every read.

```
applications --- lease-get, lease-set, delete ---> routers ---> servers, gutter    (two clusters)
     |                                                ^
     +------- read a row, commit a version ---> database --> invalidator
```

| module | what it is |
|---|---|
| `network` | where processes listen: 127.0.0.1, or a network namespace for each, whose links can be cut |
| `databases` | MariaDB, MySQL or PostgreSQL |
| `region` | the processes, and how each is started, killed, stopped, continued and upgraded |
| `faults` | the kinds of faults, the schedule that a seed gives, and its execution |
| `resize` | the faults that change a pool's list of servers |
| `connections` | connections to routers and to the database |
| `applications` | readers and writers, and the poller of the invalidator's position |
| `checker` | the versions of every key, and what each read was allowed to see |
| `convergence` | what must be true when the faults have ended |
| `run` | one run: all of the above |
| `report` | figures of a run, and its picture |

    make chaos          one run of 60 s with a random seed (CHAOS="--seed 7 --seconds 300")
"""
