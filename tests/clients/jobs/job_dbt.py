"""dbt: seed, views, tables, incremental models, snapshots, tests and docs, twice. PG* of the environment name the server."""

import os
import tempfile
from pathlib import Path

import psycopg2
from dbt.cli.main import dbtRunner
from same import same

FILES = {
    "dbt_project.yml": """
name: shop
version: "1.0"
profile: shop
flags: {send_anonymous_usage_stats: false, use_colors: false}
models: {shop: {+persist_docs: {relation: true, columns: true}}}
""",
    "profiles.yml": """
shop:
  target: dev
  outputs:
    dev: {type: postgres, host: HOST, port: PORT, user: USER, password: "x", dbname: DATABASE, schema: dbt_shop, threads: 3}
""",
    "seeds/orders.csv": "id,customer,amount,placed\n1,ann,10.5,2024-01-01\n2,ben,20,2024-01-02\n3,ann,5,2024-01-03\n",
    "models/big.sql": "select * from {{ ref('orders') }} where amount > 6",
    "models/spending.sql": """
{{ config(materialized='table', indexes=[{'columns': ['customer'], 'unique': true}]) }}
select customer, sum(amount) as spent, count(*) as orders from {{ ref('orders') }} group by 1
""",
    "models/growing.sql": """
{{ config(materialized='incremental', unique_key='id', on_schema_change='append_new_columns') }}
select id, customer, amount from {{ ref('orders') }}
{% if is_incremental() %} where id >= (select max(id) from {{ this }}) {% endif %}
""",
    "models/appended.sql": """
{{ config(materialized='incremental', incremental_strategy='append') }}
select count(*) as orders, current_timestamp as at from {{ ref('orders') }}
""",
    "models/merged.sql": """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id', full_refresh=false, merge_update_columns=['amount']) }}
select id, customer {% if is_incremental() %} || '!' as customer {% endif %}, amount from {{ ref('orders') }}
""",
    "models/shown.sql": "{{ config(materialized='materialized_view') }} select customer, sum(amount) as spent from {{ ref('orders') }} group by 1",
    "models/passing.sql": "{{ config(materialized='ephemeral') }} select customer from {{ ref('spending') }}",
    "models/last.sql": "select distinct customer from {{ ref('passing') }}",
    "models/schema.yml": """
models:
  - name: spending
    description: What customers spend
    columns:
      - {name: customer, description: "A customer's name", data_tests: [unique, not_null, {accepted_values: {values: [ann, ben, cid]}}]}
  - name: big
    columns:
      - {name: customer, data_tests: [{relationships: {to: ref('spending'), field: customer}}]}
  - name: contracted
    config: {contract: {enforced: true}, materialized: table}
    columns:
      - {name: id, data_type: int, constraints: [{type: not_null}, {type: primary_key}]}
      - {name: customer, data_type: text, constraints: [{type: check, expression: "customer <> ''"}]}
""",
    "models/contracted.sql": "select id, customer from {{ ref('orders') }}",
    "tests/none_negative.sql": "select * from {{ ref('orders') }} where amount < 0",
    "snapshots/kept.sql": """
{% snapshot kept %}
{{ config(target_schema='dbt_shop', unique_key='id', strategy='check', check_cols=['amount']) }}
select id, customer, amount from {{ ref('orders') }}
{% endsnapshot %}
""",
    "macros/hello.sql": "{% macro hello() %}{% do run_query('select 1') %}{% endmacro %}",
}


def run(folder: Path, *command: str) -> None:
    result = dbtRunner().invoke([*command, "--project-dir", str(folder), "--profiles-dir", str(folder), "--quiet"])
    failures = [
        (one.node.name, one.message)
        for one in getattr(result.result, "results", [])
        if str(one.status) not in {"success", "pass"}
    ]
    assert result.success, (command, result.exception, failures)


def rows(text: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect("")
    with connection, connection.cursor() as cursor:
        cursor.execute(text)
        found = cursor.fetchall()
    connection.close()
    return found


def work() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = {"HOST": "PGHOST", "PORT": "PGPORT", "USER": "PGUSER", "DATABASE": "PGDATABASE"}
        for place, text in FILES.items():
            (folder / place).parent.mkdir(exist_ok=True)
            (folder / place).write_text(text.lstrip())
        profile = (folder / "profiles.yml").read_text()
        for word, variable in names.items():
            profile = profile.replace(word, os.environ.get(variable, "5432"))
        (folder / "profiles.yml").write_text(profile)
        run(folder, "debug")
        run(folder, "build")
        print("build: done")
        same(rows("SELECT customer, spent::text FROM dbt_shop.spending ORDER BY 1"), [("ann", "15.5"), ("ben", "20")])
        (folder / "seeds/orders.csv").write_text(
            FILES["seeds/orders.csv"].replace("3,ann,5", "3,ann,7") + "4,cid,1,2024-01-04\n"
        )
        growing = folder / "models/growing.sql"
        growing.write_text(growing.read_text().replace("customer, amount from", "customer, amount, placed from"))
        for command in (
            ["seed"],
            ["run"],
            ["snapshot"],
            ["test"],
            ["build"],
            ["run", "--full-refresh"],
            ["docs", "generate"],
        ):
            run(folder, *command)
            print(f"{command[0]}: done")
        run(folder, "run-operation", "hello")
        same(
            rows("SELECT customer, spent::text FROM dbt_shop.spending ORDER BY 1"),
            [("ann", "17.5"), ("ben", "20"), ("cid", "1")],
        )
        same(
            rows("SELECT id, amount::text FROM dbt_shop.kept WHERE dbt_valid_to IS NULL AND id > 2 ORDER BY 1"),
            [(3, "7"), (4, "1")],
        )
        same(rows("SELECT id, placed::text FROM dbt_shop.growing ORDER BY 1")[3], (4, "2024-01-04"))
        merged = rows("SELECT customer, amount::text FROM dbt_shop.merged ORDER BY id")
        same(merged, [("ann", "10.5"), ("ben", "20"), ("ann", "7"), ("cid!", "1")])
        same(rows("SELECT obj_description('dbt_shop.spending'::regclass)"), [("What customers spend",)])
        same(rows("SELECT spent::int FROM dbt_shop.shown ORDER BY 1"), [(1,), (18,), (20,)])
        catalog = (folder / "target/catalog.json").read_text()
        assert "model.shop.spending" in catalog


for _ in range(2):
    work()
print("both rounds: done")
