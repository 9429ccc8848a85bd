CREATE TABLE about (run TEXT);
CREATE TABLE files (name TEXT PRIMARY KEY, done INTEGER, lines INTEGER, head INTEGER, tail INTEGER);
CREATE TABLE groups (number INTEGER PRIMARY KEY, step INTEGER, state TEXT, kind TEXT);
CREATE TABLE components (name TEXT PRIMARY KEY, place TEXT);
CREATE TABLE remarks (file TEXT, said TEXT);
CREATE TABLE trajectories (
  number INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER, reward REAL, success INTEGER, turns INTEGER, calls INTEGER,
  tokens INTEGER, seconds REAL, version INTEGER, of_group INTEGER, part INTEGER, kind INTEGER, ended INTEGER,
  tools INTEGER, outcomes INTEGER, marks INTEGER, task INTEGER, file INTEGER);
CREATE TABLE texts_of (
  number INTEGER PRIMARY KEY, id TEXT, error TEXT, parent TEXT, fork_turn INTEGER, role TEXT, excerpt TEXT,
  place INTEGER, length INTEGER);
CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE INDEX by_id ON texts_of (id);
CREATE INDEX by_step ON trajectories (step);
CREATE INDEX by_task ON trajectories (task);
CREATE INDEX by_group ON trajectories (of_group);
CREATE INDEX by_file ON trajectories (file);
CREATE TABLE calls (
  trajectory INTEGER, name TEXT, outcome TEXT, seconds REAL, truncated INTEGER, error TEXT);
CREATE VIRTUAL TABLE texts USING fts5 (said, content='');
