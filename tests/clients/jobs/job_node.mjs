// node-postgres, knex, drizzle, sequelize and TypeORM. PG* of the environment name the server.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.NODE_PATH, "resolved.js"));
const pg = require("pg");
const place = {
  host: process.env.PGHOST, port: Number(process.env.PGPORT ?? 5432), user: process.env.PGUSER,
  database: process.env.PGDATABASE, password: "x",
};

async function nodePostgres() {
  const pool = new pg.Pool({ ...place, max: 3 });
  await pool.query("DROP TABLE IF EXISTS np");
  await pool.query("CREATE TABLE np (id serial PRIMARY KEY, name text, data jsonb, tags text[], at timestamptz, n numeric)");
  const at = new Date("2024-01-02T03:04:05.678Z");
  const { rows } = await pool.query(
    "INSERT INTO np (name, data, tags, at, n) VALUES ($1, $2, $3, $4, $5) RETURNING *",
    ["ann", { a: [1, null] }, ["x", 'y"z'], at, "12.5"]);
  assert.deepEqual(rows, [{ id: 1, name: "ann", data: { a: [1, null] }, tags: ["x", 'y"z'], at, n: "12.5" }]);
  const client = await pool.connect();
  await client.query("BEGIN");
  await client.query({ name: "insert", text: "INSERT INTO np (name) VALUES ($1)", values: ["ben"] });
  await client.query("ROLLBACK");
  await assert.rejects(client.query("INSERT INTO np (id) VALUES (1)"), { code: "23505", constraint: "np_pkey" });
  client.release();
  const found = await Promise.all([1, 2, 3].map(id => pool.query("SELECT name FROM np WHERE id = ANY($1::int[])", [[id]])));
  assert.deepEqual(found.map(one => one.rowCount), [1, 0, 0]);
  await pool.query("DROP TABLE np");
  await pool.end();
}

async function knexJob() {
  const knex = require("knex")({ client: "pg", connection: place });
  await knex.schema.dropTableIfExists("kx_orders");
  await knex.schema.dropTableIfExists("kx_people");
  await knex.schema.createTable("kx_people", table => {
    table.increments("id");
    table.string("name", 50).notNullable().unique().index();
    table.jsonb("data").defaultTo("{}");
    table.specificType("tags", "text[]");
    table.enu("level", ["low", "high"]).defaultTo("low");
    table.timestamps(true, true);
  });
  await knex.schema.createTable("kx_orders", table => {
    table.uuid("id").primary();
    table.integer("person").unsigned().references("kx_people.id").onDelete("CASCADE").onUpdate("CASCADE").index();
    table.decimal("amount", 10, 2);
  });
  const [{ id }] = await knex("kx_people").insert({ name: "ann", tags: ["a"] }).returning("id");
  await knex("kx_people").insert({ name: "ann", level: "high" }).onConflict("name").merge();
  await knex("kx_orders").insert([1, 2].map(at => ({ id: `00000000-0000-0000-0000-00000000000${at}`, person: id, amount: at })));
  await knex.transaction(async trx => {
    await trx("kx_orders").where({ person: id }).forUpdate();
    await trx("kx_orders").where({ amount: 1 }).update({ amount: knex.raw("amount + 1.5") });
  });
  const rows = await knex("kx_people as p").join("kx_orders as o", "o.person", "p.id").groupBy("p.id").select("p.name", "p.level").sum("o.amount as total");
  assert.deepEqual(rows, [{ name: "ann", level: "high", total: "4.50" }]);
  await knex.schema.alterTable("kx_people", table => {
    table.text("note").defaultTo("n");
    table.renameColumn("data", "settings");
    table.string("name", 100).notNullable().alter();
    table.dropColumn("tags");
  });
  assert.ok(await knex.schema.hasColumn("kx_people", "settings"));
  await knex("kx_people").update({ id: 77 });
  assert.deepEqual(await knex("kx_orders").distinct("person"), [{ person: 77 }]);
  await knex("kx_people").del();
  assert.deepEqual(await knex("kx_orders").count("* as n"), [{ n: "0" }]);
  await knex.schema.dropTable("kx_orders");
  await knex.schema.dropTable("kx_people");
  await knex.destroy();
}

async function drizzle() {
  const { drizzle: over } = require("drizzle-orm/node-postgres");
  const { pgTable, serial, text, integer, jsonb, timestamp, uuid } = require("drizzle-orm/pg-core");
  const { eq, sql, desc, relations, count } = require("drizzle-orm");
  const people = pgTable("dz_people", { id: serial("id").primaryKey(), name: text("name").notNull(), data: jsonb("data"), at: timestamp("at").defaultNow(), key: uuid("key").defaultRandom() });
  const orders = pgTable("dz_orders", { id: serial("id").primaryKey(), person: integer("person").references(() => people.id), amount: integer("amount") });
  const peopleRelations = relations(people, ({ many }) => ({ orders: many(orders) }));
  const ordersRelations = relations(orders, ({ one }) => ({ owner: one(people, { fields: [orders.person], references: [people.id] }) }));
  const pool = new pg.Pool(place);
  const db = over(pool, { schema: { people, orders, peopleRelations, ordersRelations } });
  await db.execute(sql`DROP TABLE IF EXISTS dz_orders, dz_people`);
  await db.execute(sql`CREATE TABLE dz_people (id serial PRIMARY KEY, name text NOT NULL, data jsonb, at timestamp DEFAULT now(), key uuid DEFAULT gen_random_uuid())`);
  await db.execute(sql`CREATE TABLE dz_orders (id serial PRIMARY KEY, person integer REFERENCES dz_people, amount integer)`);
  const [ann] = await db.insert(people).values({ name: "ann", data: { a: 1 } }).returning();
  assert.equal(ann.key.length, 36);
  await db.insert(orders).values([{ person: ann.id, amount: 5 }, { person: ann.id, amount: 7 }]);
  await db.insert(people).values({ id: ann.id, name: "x" }).onConflictDoUpdate({ target: people.id, set: { name: "Ann" } });
  const listed = await db.select({ name: people.name, n: count() }).from(people).leftJoin(orders, eq(orders.person, people.id)).groupBy(people.id).orderBy(desc(people.name));
  assert.deepEqual(listed, [{ name: "Ann", n: 2 }]);
  const nested = await db.query.people.findMany({ with: { orders: { orderBy: orders.amount } } });
  assert.deepEqual(nested[0].orders.map(one => one.amount), [5, 7]);
  await assert.rejects(db.transaction(async tx => { await tx.delete(orders); tx.rollback(); }));
  assert.equal(await db.$count(orders), 2);
  await db.execute(sql`DROP TABLE dz_orders, dz_people`);
  await pool.end();
}

async function sequelizeJob() {
  const { Sequelize, DataTypes, Op } = require("sequelize");
  const sequelize = new Sequelize(place.database, place.user, "x", { host: place.host, port: place.port, dialect: "postgres", logging: false });
  const Person = sequelize.define("SqPerson", {
    name: { type: DataTypes.STRING, unique: true }, data: DataTypes.JSONB, tags: DataTypes.ARRAY(DataTypes.STRING),
    key: { type: DataTypes.UUID, defaultValue: DataTypes.UUIDV4 }, size: { type: DataTypes.DECIMAL(10, 2), allowNull: true },
  });
  const Order = sequelize.define("SqOrder", { amount: DataTypes.INTEGER });
  Person.hasMany(Order);
  Order.belongsTo(Person);
  await sequelize.sync({ force: true });
  await sequelize.sync();
  const ann = await Person.create({ name: "ann", data: { a: { b: 1 } }, tags: ["x"], SqOrders: [{ amount: 1 }, { amount: 2 }] }, { include: Order });
  await Person.bulkCreate([{ name: "ben" }, { name: "ann", size: 1.5 }], { updateOnDuplicate: ["size"], conflictAttributes: ["name"] });
  const [, isNew] = await Person.findOrCreate({ where: { name: "ben" } });
  assert.equal(isNew, false);
  await Person.upsert({ name: "ben", size: 2 }, { conflictFields: ["name"] });
  const found = await Person.findAll({ where: { "data.a.b": 1, tags: { [Op.contains]: ["x"] } }, include: Order });
  assert.deepEqual(found.map(one => [one.name, one.size, one.SqOrders.length]), [["ann", "1.50", 2]]);
  await sequelize.transaction(async transaction => {
    await Order.increment("amount", { by: 10, where: { SqPersonId: ann.id }, transaction });
    await Person.findOne({ where: { name: "ann" }, lock: transaction.LOCK.UPDATE, transaction });
  });
  assert.equal(await Order.sum("amount"), 23);
  const pages = await Person.findAndCountAll({ limit: 1, offset: 1, order: [["name", "DESC"]] });
  assert.deepEqual([pages.count, pages.rows[0].name], [2, "ann"]);
  await ann.destroy();
  assert.equal(await Order.count({ where: { SqPersonId: null } }), 2);
  const queryInterface = sequelize.getQueryInterface();
  await queryInterface.addColumn("SqPeople", "note", { type: DataTypes.TEXT, defaultValue: "n" });
  await queryInterface.changeColumn("SqPeople", "note", { type: DataTypes.STRING(50), allowNull: false });
  await queryInterface.renameColumn("SqPeople", "note", "remark");
  await queryInterface.addIndex("SqPeople", ["remark"]);
  assert.ok("remark" in await queryInterface.describeTable("SqPeople"));
  await queryInterface.removeColumn("SqPeople", "remark");
  await sequelize.drop();
  await sequelize.close();
}

async function typeorm() {
  require("reflect-metadata");
  const { DataSource, EntitySchema } = require("typeorm");
  const Person = new EntitySchema({
    name: "to_person",
    columns: {
      id: { type: Number, primary: true, generated: true }, name: { type: String, unique: true }, data: { type: "jsonb", nullable: true },
      made: { type: "timestamptz", createDate: true }, tags: { type: "text", array: true, default: [] },
    },
    relations: { orders: { type: "one-to-many", target: "to_order", inverseSide: "person", cascade: true } },
  });
  const Order = new EntitySchema({
    name: "to_order",
    columns: { id: { type: "int", primary: true, generated: "identity" }, amount: { type: "numeric", precision: 10, scale: 2 } },
    relations: { person: { type: "many-to-one", target: "to_person", inverseSide: "orders", onDelete: "CASCADE" } },
    indices: [{ name: "to_order_amount", columns: ["amount"] }],
  });
  const options = { type: "postgres", host: place.host, port: place.port, username: place.user, password: "x", database: place.database, installExtensions: false };
  const source = await new DataSource({ ...options, entities: [Person, Order], synchronize: true, dropSchema: false }).initialize();
  await source.synchronize();
  const people = source.getRepository("to_person");
  const ann = await people.save({ name: "ann", data: { a: 1 }, orders: [{ amount: "1.5" }, { amount: "2" }] });
  assert.equal(ann.orders.length, 2);
  await people.upsert({ name: "ann", tags: ["x"] }, ["name"]);
  const found = await people.find({ relations: { orders: true }, where: { name: "ann" }, order: { orders: { amount: "ASC" } } });
  assert.deepEqual(found[0].orders.map(one => one.amount), ["1.50", "2.00"]);
  const total = await source.getRepository("to_order").createQueryBuilder("o").innerJoin("o.person", "p").select("p.name", "name").addSelect("SUM(o.amount)", "total").groupBy("p.id").getRawMany();
  assert.deepEqual(total, [{ name: "ann", total: "3.50" }]);
  await source.transaction(async manager => {
    await manager.getRepository("to_person").findOne({ where: { name: "ann" }, lock: { mode: "pessimistic_write" } });
    await manager.delete("to_person", { name: "ann" });
  });
  assert.equal(await source.getRepository("to_order").count(), 0);
  await source.destroy();
  const Grown = new EntitySchema({ name: "to_person", columns: { id: { type: Number, primary: true, generated: true }, name: { type: String, length: 80 }, note: { type: "text", default: "n" } }, indices: [{ columns: ["note"] }] });
  const later = await new DataSource({ ...options, entities: [Grown], synchronize: false }).initialize();
  const changes = await later.driver.createSchemaBuilder().log();
  assert.ok(changes.upQueries.length > 0);
  await later.query('DROP TABLE IF EXISTS "to_order", "to_person"');
  await later.destroy();
}

for (const job of [nodePostgres, knexJob, drizzle, sequelizeJob, typeorm]) {
  await job();
  console.log(`${job.name}: done`);
}
