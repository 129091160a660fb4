"""Statements over the index of series: which metrics there are, and which labels one has. Pure text, for DuckDB.

Index tables are per hour: a series counts if its samples in an hour reach into the range.
"""

_INSIDE = (
    "FROM read_parquet($files) WHERE last_time_ns >= $since AND first_time_ns < $until "
    "AND ($agent::VARCHAR IS NULL OR agent = $agent::VARCHAR)"
)

METRICS = f"""
SELECT metric, kind, count(DISTINCT (agent, labels)) AS series, count(DISTINCT agent) AS agents,
       sum(samples)::BIGINT AS samples, min(first_time_ns) AS first_time_ns, max(last_time_ns) AS last_time_ns
{_INSIDE} AND regexp_full_match(metric, $pattern)
GROUP BY metric, kind ORDER BY metric, kind
"""

LABELS = f"""
WITH found AS (SELECT DISTINCT agent, labels, kind {_INSIDE} AND metric = $metric),
pairs AS (
    SELECT 'agent' AS label, agent AS value FROM found
    UNION ALL
    SELECT entry.key AS label, entry.value AS value
    FROM (SELECT unnest(map_entries(labels)) AS entry FROM found) WHERE entry.key <> 'agent'
)
SELECT label, value, count(*) AS series FROM pairs GROUP BY label, value ORDER BY label, value
"""
