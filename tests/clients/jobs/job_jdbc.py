"""JDBC: the program `jdbc/Shop.java`. PG* of the environment name the server, and PGJDBC the file of the driver."""

import os
import subprocess
from pathlib import Path

host, port, database = os.environ["PGHOST"], os.environ.get("PGPORT", "5432"), os.environ["PGDATABASE"]
program = Path(__file__).parent / "jdbc" / "Shop.java"
url = f"jdbc:postgresql://{host}:{port}/{database}"
subprocess.run(["java", "-cp", os.environ["PGJDBC"], program, url, os.environ["PGUSER"]], check=True)
