"""The reports of the auction house: queries with the shapes of Nexmark; windows of time are minutes, hours and days.

Queries about the time of processing (11 and 12 of Nexmark), and the one that writes files (10), have no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping

_RANKS = (
    "count(*) AS bids, count(*) FILTER (WHERE price < 10000) AS low,"
    " count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle,"
    " count(*) FILTER (WHERE price >= 1000000) AS high"
)

AUCTION_REPORTS: Mapping[int, str] = {
    0: "SELECT auction, bidder, price, made, extra FROM bids",
    1: "SELECT auction, bidder, 0.908 * price AS price, made FROM bids",
    2: "SELECT auction, price FROM bids WHERE auction % 23 = 0",
    3: """
SELECT p.name, p.city, p.state, a.no FROM auctions a JOIN people p ON a.seller = p.no
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    4: """
SELECT category, avg(final) AS mean
FROM (SELECT max(b.price) AS final, a.category FROM auctions a JOIN bids b ON a.no = b.auction
      WHERE b.made BETWEEN a.made AND a.expires GROUP BY a.no, a.category) AS closed
GROUP BY category""",
    5: """
WITH counts AS (SELECT auction, date_trunc('hour', made) AS begun, count(*) AS bids FROM bids GROUP BY 1, 2)
SELECT c.auction, c.begun, c.bids
FROM counts c JOIN (SELECT begun, max(bids) AS most FROM counts GROUP BY begun) AS m ON c.begun = m.begun
WHERE c.bids >= m.most""",
    6: """
SELECT no, seller, avg(final) OVER (PARTITION BY seller ORDER BY made, no ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
FROM (SELECT a.no, a.seller, max(b.price) AS final, max(b.made) AS made FROM auctions a JOIN bids b ON a.no = b.auction
      WHERE b.made BETWEEN a.made AND a.expires GROUP BY a.no, a.seller) AS closed""",
    7: """
SELECT b.auction, b.price, b.bidder, b.made
FROM bids b JOIN (SELECT date_trunc('minute', made) AS begun, max(price) AS most FROM bids GROUP BY 1) AS m
  ON b.price = m.most AND date_trunc('minute', b.made) = m.begun""",
    8: """
SELECT p.no, p.name, p.begun
FROM (SELECT no, name, date_trunc('day', made) AS begun FROM people GROUP BY 1, 2, 3) AS p
JOIN (SELECT seller, date_trunc('day', made) AS begun FROM auctions GROUP BY 1, 2) AS a
  ON p.no = a.seller AND p.begun = a.begun""",
    9: """
SELECT no, item, bidder, price, made
FROM (SELECT a.no, a.item, b.bidder, b.price, b.made,
             row_number() OVER (PARTITION BY a.no ORDER BY b.price DESC, b.made, b.bidder) AS place
      FROM auctions a JOIN bids b ON a.no = b.auction WHERE b.made BETWEEN a.made AND a.expires) AS ranked
WHERE place = 1""",
    13: "SELECT b.auction, b.bidder, b.price, b.made, c.owner FROM bids b JOIN channels c ON b.channel = c.name",
    14: """
SELECT auction, bidder, 0.908 * price AS price, made,
       CASE WHEN extract(hour FROM made) BETWEEN 8 AND 18 THEN 'day'
            WHEN extract(hour FROM made) <= 6 OR extract(hour FROM made) >= 20 THEN 'night' ELSE 'other' END AS part,
       length(extra) - length(replace(extra, 'c', '')) AS cs
FROM bids WHERE 0.908 * price > 100000 AND 0.908 * price < 50000000""",
    15: f"""
SELECT date_trunc('day', made) AS begun, {_RANKS}, count(DISTINCT bidder) AS bidders,
       count(DISTINCT bidder) FILTER (WHERE price < 10000) AS low_bidders, count(DISTINCT auction) AS auctions
FROM bids GROUP BY 1""",
    16: f"""
SELECT channel, date_trunc('day', made) AS begun, max(date_trunc('minute', made)) AS latest, {_RANKS},
       count(DISTINCT bidder) AS bidders, count(DISTINCT auction) AS auctions
FROM bids GROUP BY 1, 2""",
    17: f"""
SELECT auction, date_trunc('day', made) AS begun, {_RANKS}, min(price) AS least, max(price) AS most,
       avg(price) AS mean, sum(price) AS total
FROM bids GROUP BY 1, 2""",
    18: """
SELECT auction, bidder, price, channel, made
FROM (SELECT b.*, row_number() OVER (PARTITION BY bidder, auction ORDER BY made DESC, price, channel, url, extra) AS place
      FROM bids b) AS ranked
WHERE place = 1""",
    19: """
SELECT auction, bidder, price, made, place
FROM (SELECT b.*, row_number() OVER (PARTITION BY auction ORDER BY price DESC, made, bidder, url, extra) AS place
      FROM bids b) AS ranked
WHERE place <= 10""",
    20: """
SELECT b.auction, b.bidder, b.price, b.channel, a.item, a.reserve, a.seller
FROM bids b JOIN auctions a ON b.auction = a.no WHERE a.category = 10""",
    21: """
SELECT auction, bidder, price, channel,
       CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
            ELSE split_part(url, 'channel_id=', 2) END AS channel_no
FROM bids WHERE url LIKE '%channel_id=%' OR lower(channel) IN ('apple', 'google')""",
    22: "SELECT auction, bidder, split_part(url, '/', 4) AS a, split_part(url, '/', 5) AS b FROM bids",
}
"""The queries, by their numbers in Nexmark."""
