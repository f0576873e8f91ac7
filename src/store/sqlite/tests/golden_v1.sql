PRAGMA journal_mode = WAL;
PRAGMA application_id = 1397774158;
PRAGMA user_version = 1;
CREATE TABLE meta (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL,
    rev INTEGER NOT NULL,
    create_rev INTEGER NOT NULL
) STRICT;
CREATE TABLE commits (
    rev INTEGER PRIMARY KEY,
    nonce INTEGER NOT NULL
) STRICT;
CREATE TABLE history (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    create_rev INTEGER
) STRICT;
CREATE TABLE blobs (
    id INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    stream INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    UNIQUE (owner, stream)
) STRICT;
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    blob INTEGER NOT NULL,
    start INTEGER NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (blob, start)
) STRICT;
INSERT INTO meta VALUES
    ('oldest', '1'), ('resets', '0'), ('store_id', '00112233445566778899aabbccddeeff');
INSERT INTO records VALUES (2, '/t/b', CAST('two' AS BLOB), 3, 1);
INSERT INTO commits VALUES (1, 11), (2, 22), (3, -1);
INSERT INTO history VALUES
    (128, '/t/a', CAST('one' AS BLOB), NULL), (192, '/t/b', CAST('two' AS BLOB), 1);
INSERT INTO blobs VALUES (1, 'u', 1, 5);
INSERT INTO chunks VALUES (1, 1, 0, CAST('hel' AS BLOB)), (2, 1, 3, CAST('lo' AS BLOB));
