"""The reports of the trading company: 22 queries with the shapes of TPC-H, without an order of rows."""

from __future__ import annotations

from collections.abc import Mapping

_NET = "l.amount * (1 - l.discount)"

REPORTS: Mapping[int, str] = {
    1: f"""
SELECT l.returned, l.state, sum(l.quantity) AS quantity, sum(l.amount) AS gross, sum({_NET}) AS net,
       sum({_NET} * (1 + l.tax)) AS charged, avg(l.quantity) AS mean_quantity, avg(l.amount) AS mean_amount,
       avg(l.discount) AS mean_discount, count(*) AS lines
FROM lines l WHERE l.shipped <= date '1998-09-02' GROUP BY l.returned, l.state""",
    2: """
SELECT m.balance, m.name, c.name AS country, i.no, i.house, m.address, m.phone
FROM items i, makers m, offers o, countries c, regions r
WHERE i.no = o.item_no AND m.no = o.maker_no AND i.size < 16 AND i.kind LIKE '%BRASS'
  AND m.country_no = c.no AND c.region_no = r.no AND r.name = 'EUROPE'
  AND o.cost = (SELECT min(o2.cost) FROM offers o2, makers m2, countries c2, regions r2
                WHERE i.no = o2.item_no AND m2.no = o2.maker_no AND m2.country_no = c2.no
                  AND c2.region_no = r2.no AND r2.name = 'EUROPE')
ORDER BY m.balance DESC, c.name, m.name, i.no LIMIT 100""",
    3: f"""
SELECT l.order_no, sum({_NET}) AS net, o.placed, o.urgency
FROM customers c, orders o, lines l
WHERE c.segment = 'BUILDING' AND c.no = o.customer_no AND l.order_no = o.no
  AND o.placed < date '1995-03-15' AND l.shipped > date '1995-03-15'
GROUP BY l.order_no, o.placed, o.urgency ORDER BY net DESC, o.placed LIMIT 10""",
    4: """
SELECT o.priority, count(*) AS orders FROM orders o
WHERE o.placed >= date '1993-07-01' AND o.placed < date '1993-10-01'
  AND EXISTS (SELECT 1 FROM lines l WHERE l.order_no = o.no AND l.promised < l.received)
GROUP BY o.priority""",
    5: f"""
SELECT n.name, sum({_NET}) AS net
FROM customers c, orders o, lines l, makers m, countries n, regions r
WHERE c.no = o.customer_no AND l.order_no = o.no AND l.maker_no = m.no AND c.country_no = m.country_no
  AND m.country_no = n.no AND n.region_no = r.no AND r.name = 'ASIA'
  AND o.placed >= date '1994-01-01' AND o.placed < date '1995-01-01'
GROUP BY n.name""",
    6: """
SELECT sum(l.amount * l.discount) AS gain FROM lines l
WHERE l.shipped >= date '1994-01-01' AND l.shipped < date '1995-01-01'
  AND l.discount BETWEEN 0.05 AND 0.07 AND l.quantity < 24""",
    7: f"""
SELECT seller, buyer, year, sum(net) AS net
FROM (SELECT n1.name AS seller, n2.name AS buyer, extract(year FROM l.shipped) AS year, {_NET} AS net
      FROM makers m, lines l, orders o, customers c, countries n1, countries n2
      WHERE m.no = l.maker_no AND o.no = l.order_no AND c.no = o.customer_no
        AND m.country_no = n1.no AND c.country_no = n2.no
        AND ((n1.name = 'FRANCE' AND n2.name = 'GERMANY') OR (n1.name = 'GERMANY' AND n2.name = 'FRANCE'))
        AND l.shipped BETWEEN date '1995-01-01' AND date '1996-12-31') AS shipping
GROUP BY seller, buyer, year""",
    8: f"""
SELECT year, sum(CASE WHEN country = 'BRAZIL' THEN net ELSE 0 END) / sum(net) AS share
FROM (SELECT extract(year FROM o.placed) AS year, {_NET} AS net, n2.name AS country
      FROM items i, makers m, lines l, orders o, customers c, countries n1, countries n2, regions r
      WHERE i.no = l.item_no AND m.no = l.maker_no AND l.order_no = o.no AND o.customer_no = c.no
        AND c.country_no = n1.no AND n1.region_no = r.no AND r.name = 'AMERICA' AND m.country_no = n2.no
        AND o.placed BETWEEN date '1995-01-01' AND date '1996-12-31' AND i.kind = 'ECONOMY ANODIZED STEEL') AS sold
GROUP BY year""",
    9: f"""
SELECT country, year, sum(gain) AS gain
FROM (SELECT n.name AS country, extract(year FROM o.placed) AS year, {_NET} - p.cost * l.quantity AS gain
      FROM items i, makers m, lines l, offers p, orders o, countries n
      WHERE m.no = l.maker_no AND p.maker_no = l.maker_no AND p.item_no = l.item_no AND i.no = l.item_no
        AND o.no = l.order_no AND m.country_no = n.no AND i.name LIKE '%green%') AS profit
GROUP BY country, year""",
    10: f"""
SELECT c.no, c.name, sum({_NET}) AS net, c.balance, n.name AS country, c.address, c.phone, c.note
FROM customers c, orders o, lines l, countries n
WHERE c.no = o.customer_no AND l.order_no = o.no AND o.placed >= date '1993-10-01' AND o.placed < date '1994-01-01'
  AND l.returned = 'R' AND c.country_no = n.no
GROUP BY c.no, c.name, c.balance, c.phone, n.name, c.address, c.note ORDER BY net DESC, c.no LIMIT 20""",
    11: """
SELECT o.item_no, sum(o.cost * o.available) AS value
FROM offers o, makers m, countries n
WHERE o.maker_no = m.no AND m.country_no = n.no AND n.name = 'GERMANY'
GROUP BY o.item_no
HAVING sum(o.cost * o.available) > (SELECT sum(o2.cost * o2.available) * 0.01
                                   FROM offers o2, makers m2, countries n2
                                   WHERE o2.maker_no = m2.no AND m2.country_no = n2.no AND n2.name = 'GERMANY')""",
    12: """
SELECT l.mode, sum(CASE WHEN o.priority = '1-URGENT' OR o.priority = '2-HIGH' THEN 1 ELSE 0 END) AS high,
       sum(CASE WHEN o.priority <> '1-URGENT' AND o.priority <> '2-HIGH' THEN 1 ELSE 0 END) AS low
FROM orders o, lines l
WHERE o.no = l.order_no AND l.mode IN ('MAIL', 'SHIP') AND l.promised < l.received AND l.shipped < l.promised
  AND l.received >= date '1994-01-01' AND l.received < date '1995-01-01'
GROUP BY l.mode""",
    13: """
SELECT orders, count(*) AS customers
FROM (SELECT c.no, count(o.no) AS orders FROM customers c
      LEFT JOIN orders o ON c.no = o.customer_no AND o.note NOT LIKE '%special%requests%'
      GROUP BY c.no) AS counted
GROUP BY orders""",
    14: f"""
SELECT 100.00 * sum(CASE WHEN i.kind LIKE 'PROMO%' THEN {_NET} ELSE 0 END) / sum({_NET}) AS promoted
FROM lines l, items i
WHERE l.item_no = i.no AND l.shipped >= date '1995-09-01' AND l.shipped < date '1995-10-01'""",
    15: f"""
WITH revenue AS (SELECT l.maker_no, sum({_NET}) AS total FROM lines l
                 WHERE l.shipped >= date '1996-01-01' AND l.shipped < date '1996-04-01' GROUP BY l.maker_no)
SELECT m.no, m.name, m.address, m.phone, v.total FROM makers m, revenue v
WHERE m.no = v.maker_no AND v.total = (SELECT max(total) FROM revenue)""",
    16: """
SELECT i.brand, i.kind, i.size, count(DISTINCT o.maker_no) AS makers
FROM offers o, items i
WHERE i.no = o.item_no AND i.brand <> 'Brand#45' AND i.kind NOT LIKE 'MEDIUM POLISHED%'
  AND i.size IN (49, 14, 23, 45, 19, 3, 36, 9)
  AND o.maker_no NOT IN (SELECT m.no FROM makers m WHERE m.note LIKE '%Customer%Complaints%')
GROUP BY i.brand, i.kind, i.size""",
    17: """
SELECT sum(l.amount) / 7.0 AS yearly FROM lines l, items i
WHERE i.no = l.item_no AND i.brand = 'Brand#23' AND i.container LIKE 'MED%'
  AND l.quantity < (SELECT 0.2 * avg(l2.quantity) FROM lines l2 WHERE l2.item_no = i.no)""",
    18: """
SELECT c.name, c.no AS customer_no, o.no, o.placed, o.total, sum(l.quantity) AS quantity
FROM customers c, orders o, lines l
WHERE o.no IN (SELECT order_no FROM lines GROUP BY order_no HAVING sum(quantity) > 250)
  AND c.no = o.customer_no AND o.no = l.order_no
GROUP BY c.name, c.no, o.no, o.placed, o.total ORDER BY o.total DESC, o.placed, o.no LIMIT 100""",
    19: f"""
SELECT sum({_NET}) AS net FROM lines l, items i
WHERE (i.no = l.item_no AND i.brand = 'Brand#12' AND i.container IN ('SM CASE', 'SM BOX', 'SM BAG', 'SM PKG')
       AND l.quantity >= 1 AND l.quantity <= 31 AND i.size BETWEEN 1 AND 25
       AND l.mode IN ('AIR', 'REG AIR') AND l.handling = 'DELIVER IN PERSON')
   OR (i.no = l.item_no AND i.brand = 'Brand#23' AND i.container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED CASE')
       AND l.quantity >= 10 AND l.quantity <= 40 AND i.size BETWEEN 1 AND 30
       AND l.mode IN ('AIR', 'REG AIR') AND l.handling = 'DELIVER IN PERSON')
   OR (i.no = l.item_no AND i.brand = 'Brand#34' AND i.container IN ('LG CASE', 'LG BOX', 'LG PKG', 'LG BAG')
       AND l.quantity >= 20 AND l.quantity <= 50 AND i.size BETWEEN 1 AND 35
       AND l.mode IN ('AIR', 'REG AIR') AND l.handling = 'DELIVER IN PERSON')""",
    20: """
SELECT m.name, m.address FROM makers m, countries n
WHERE m.no IN (SELECT o.maker_no FROM offers o
               WHERE o.item_no IN (SELECT i.no FROM items i WHERE i.name LIKE 'forest%')
                 AND o.available > (SELECT 0.5 * sum(l.quantity) FROM lines l
                                    WHERE l.item_no = o.item_no AND l.maker_no = o.maker_no
                                      AND l.shipped >= date '1994-01-01' AND l.shipped < date '1995-01-01'))
  AND m.country_no = n.no AND n.name IN ('CANADA', 'FRANCE', 'KENYA', 'PERU')""",
    21: """
SELECT m.name, count(*) AS waits FROM makers m, lines l1, orders o, countries n
WHERE m.no = l1.maker_no AND o.no = l1.order_no AND o.state = 'F' AND l1.received > l1.promised
  AND EXISTS (SELECT 1 FROM lines l2 WHERE l2.order_no = l1.order_no AND l2.maker_no <> l1.maker_no)
  AND NOT EXISTS (SELECT 1 FROM lines l3 WHERE l3.order_no = l1.order_no AND l3.maker_no <> l1.maker_no
                  AND l3.received > l3.promised)
  AND m.country_no = n.no AND n.name = 'SAUDI ARABIA'
GROUP BY m.name ORDER BY waits DESC, m.name LIMIT 100""",
    22: """
SELECT code, count(*) AS customers, sum(balance) AS balance
FROM (SELECT substring(c.phone FROM 1 FOR 2) AS code, c.balance FROM customers c
      WHERE substring(c.phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17')
        AND c.balance > (SELECT avg(c2.balance) FROM customers c2
                         WHERE c2.balance > 0.00
                           AND substring(c2.phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17'))
        AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer_no = c.no)) AS idle
GROUP BY code""",
}
"""The queries, by their numbers in TPC-H."""
