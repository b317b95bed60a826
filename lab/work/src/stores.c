/* Key-value stores of others behind one interface, each with the settings that its authors recommend. `stores.rs`
   builds this file where the libraries are installed, with one of ROCKSDB, LMDB and WIREDTIGER defined.

   Each call returns NULL, or a text with the failure. Keys are stored so that their order is that of numbers. Several
   threads may call a store at the same time. `kv_commit` returns when all changes of its thread are durable. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*look)(void *context, uint64_t key, const void *value, size_t len);

static __thread char said[256];

static const char *fail(const char *what, const char *why) {
    snprintf(said, sizeof said, "%s: %s", what, why);
    return said;
}

#if defined(ROCKSDB) || defined(LMDB)
static void to_bytes(uint64_t key, unsigned char *bytes) {
    for (int at = 0; at < 8; at++) bytes[at] = key >> (56 - 8 * at);
}

static uint64_t from_bytes(const unsigned char *bytes) {
    uint64_t key = 0;
    for (int at = 0; at < 8; at++) key = key << 8 | bytes[at];
    return key;
}
#endif

#ifdef ROCKSDB
#include <rocksdb/c.h>

struct store {
    rocksdb_t *db;
    rocksdb_readoptions_t *reads;
    rocksdb_writeoptions_t *writes;
};

static const char *failed(const char *what, char *error) {
    const char *text = error ? fail(what, error) : NULL;
    free(error);
    return text;
}

const char *kv_open(const char *path, size_t cache_bytes, struct store **made) {
    char *error = NULL;
    struct store *store = calloc(1, sizeof *store);
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_increase_parallelism(options, 2);
    rocksdb_options_set_write_buffer_size(options, cache_bytes / 8);
    rocksdb_options_set_max_write_buffer_number(options, 2);
    rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(cache_bytes / 2));
    rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
    rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table, 1);
    rocksdb_options_set_block_based_table_factory(options, table);
    store->db = rocksdb_open(options, path, &error);
    store->reads = rocksdb_readoptions_create();
    store->writes = rocksdb_writeoptions_create();
    *made = store;
    return failed("rocksdb_open", error);
}

const char *kv_get(struct store *store, uint64_t key, void *context, look look) {
    unsigned char bytes[8];
    char *error = NULL;
    size_t len;
    to_bytes(key, bytes);
    rocksdb_pinnableslice_t *found = rocksdb_get_pinned(store->db, store->reads, (char *)bytes, 8, &error);
    if (found) {
        const char *value = rocksdb_pinnableslice_value(found, &len);
        look(context, key, value, len);
        rocksdb_pinnableslice_destroy(found);
    }
    return failed("rocksdb_get_pinned", error);
}

const char *kv_put(struct store *store, uint64_t key, const void *value, size_t len) {
    unsigned char bytes[8];
    char *error = NULL;
    to_bytes(key, bytes);
    rocksdb_put(store->db, store->writes, (char *)bytes, 8, value, len, &error);
    return failed("rocksdb_put", error);
}

const char *kv_commit(struct store *store) {
    char *error = NULL;
    rocksdb_flush_wal(store->db, 1, &error);
    return failed("rocksdb_flush_wal", error);
}

const char *kv_scan(struct store *store, uint64_t from, size_t count, void *context, look look) {
    unsigned char bytes[8];
    char *error = NULL;
    size_t len;
    rocksdb_iterator_t *at = rocksdb_create_iterator(store->db, store->reads);
    to_bytes(from, bytes);
    for (rocksdb_iter_seek(at, (char *)bytes, 8); count > 0 && rocksdb_iter_valid(at); count--, rocksdb_iter_next(at)) {
        uint64_t key = from_bytes((const unsigned char *)rocksdb_iter_key(at, &len));
        const char *value = rocksdb_iter_value(at, &len);
        look(context, key, value, len);
    }
    rocksdb_iter_get_error(at, &error);
    rocksdb_iter_destroy(at);
    return failed("rocksdb_iter", error);
}

const char *kv_close(struct store *store) {
    rocksdb_close(store->db);
    return NULL;
}
#endif

#ifdef LMDB
#include <lmdb.h>

struct store {
    MDB_env *env;
    MDB_dbi dbi;
};

static __thread MDB_txn *reading, *writing;

static const char *failed(const char *what, int error) {
    return error ? fail(what, mdb_strerror(error)) : NULL;
}

const char *kv_open(const char *path, size_t cache_bytes, struct store **made) {
    struct store *store = calloc(1, sizeof *store);
    MDB_txn *transaction;
    (void)cache_bytes;
    *made = store;
    int error = mdb_env_create(&store->env);
    if (!error) error = mdb_env_set_mapsize(store->env, (size_t)1 << 38);
    if (!error) error = mdb_env_set_maxreaders(store->env, 512);
    /* LMDB's manual recommends this for random reads of data larger than memory. */
    if (!error) error = mdb_env_open(store->env, path, MDB_NORDAHEAD | MDB_NOSUBDIR, 0600);
    if (!error) error = mdb_txn_begin(store->env, NULL, 0, &transaction);
    if (!error) error = mdb_dbi_open(transaction, NULL, 0, &store->dbi);
    if (!error) error = mdb_txn_commit(transaction);
    return failed("mdb_env_open", error);
}

static int begin(struct store *store) {
    return reading ? mdb_txn_renew(reading) : mdb_txn_begin(store->env, NULL, MDB_RDONLY, &reading);
}

const char *kv_get(struct store *store, uint64_t key, void *context, look look) {
    unsigned char bytes[8];
    MDB_val name = {8, bytes}, value;
    to_bytes(key, bytes);
    int error = begin(store);
    if (error) return failed("mdb_txn_renew", error);
    error = mdb_get(reading, store->dbi, &name, &value);
    if (!error) look(context, key, value.mv_data, value.mv_size);
    mdb_txn_reset(reading);
    return error == MDB_NOTFOUND ? NULL : failed("mdb_get", error);
}

/* A batch: the first put begins a transaction, which the commit ends. */
const char *kv_put(struct store *store, uint64_t key, const void *value, size_t len) {
    unsigned char bytes[8];
    MDB_val name = {8, bytes}, data = {len, (void *)value};
    to_bytes(key, bytes);
    int error = writing ? 0 : mdb_txn_begin(store->env, NULL, 0, &writing);
    if (!error) error = mdb_put(writing, store->dbi, &name, &data, 0);
    return failed("mdb_put", error);
}

const char *kv_commit(struct store *store) {
    (void)store;
    MDB_txn *ending = writing;
    writing = NULL;
    return ending ? failed("mdb_txn_commit", mdb_txn_commit(ending)) : NULL;
}

const char *kv_scan(struct store *store, uint64_t from, size_t count, void *context, look look) {
    unsigned char bytes[8];
    MDB_val name = {8, bytes}, value;
    MDB_cursor *at;
    to_bytes(from, bytes);
    int error = begin(store);
    if (error) return failed("mdb_txn_renew", error);
    error = mdb_cursor_open(reading, store->dbi, &at);
    if (error) return failed("mdb_cursor_open", error);
    error = mdb_cursor_get(at, &name, &value, MDB_SET_RANGE);
    while (!error && count > 0) {
        look(context, from_bytes(name.mv_data), value.mv_data, value.mv_size);
        count--;
        error = mdb_cursor_get(at, &name, &value, MDB_NEXT);
    }
    mdb_cursor_close(at);
    mdb_txn_reset(reading);
    return error == MDB_NOTFOUND ? NULL : failed("mdb_cursor_get", error);
}

const char *kv_close(struct store *store) {
    mdb_env_close(store->env);
    return NULL;
}
#endif

#ifdef WIREDTIGER
#include <wiredtiger.h>

struct store {
    WT_CONNECTION *connection;
};

static __thread WT_SESSION *session;
static __thread WT_CURSOR *cursor;

static const char *failed(const char *what, int error) {
    return error ? fail(what, wiredtiger_strerror(error)) : NULL;
}

static int begin(struct store *store) {
    if (cursor) return 0;
    int error = store->connection->open_session(store->connection, NULL, NULL, &session);
    return error ? error : session->open_cursor(session, "table:kv", NULL, "overwrite=true", &cursor);
}

const char *kv_open(const char *path, size_t cache_bytes, struct store **made) {
    char text[256];
    struct store *store = calloc(1, sizeof *store);
    WT_SESSION *first;
    *made = store;
    snprintf(text, sizeof text, "create,cache_size=%zu,session_max=512,log=(enabled=true),checkpoint=(wait=60)", cache_bytes / 2);
    int error = wiredtiger_open(path, NULL, text, &store->connection);
    if (!error) error = store->connection->open_session(store->connection, NULL, NULL, &first);
    if (!error) error = first->create(first, "table:kv", "key_format=Q,value_format=u,leaf_page_max=4KB");
    if (!error) error = first->close(first, NULL);
    return failed("wiredtiger_open", error);
}

const char *kv_get(struct store *store, uint64_t key, void *context, look look) {
    WT_ITEM value;
    int error = begin(store);
    if (error) return failed("open_cursor", error);
    cursor->set_key(cursor, key);
    error = cursor->search(cursor);
    if (!error) error = cursor->get_value(cursor, &value);
    if (!error) look(context, key, value.data, value.size);
    int ended = cursor->reset(cursor);
    return error == WT_NOTFOUND ? NULL : failed("search", error ? error : ended);
}

const char *kv_put(struct store *store, uint64_t key, const void *value, size_t len) {
    WT_ITEM data = {.data = value, .size = len};
    int error = begin(store);
    if (error) return failed("open_cursor", error);
    /* Two threads may change one key: the second tries again. */
    do {
        cursor->set_key(cursor, key);
        cursor->set_value(cursor, &data);
        error = cursor->insert(cursor);
    } while (error == WT_ROLLBACK);
    return failed("insert", error);
}

const char *kv_commit(struct store *store) {
    int error = begin(store);
    return failed("log_flush", error ? error : session->log_flush(session, "sync=on"));
}

const char *kv_scan(struct store *store, uint64_t from, size_t count, void *context, look look) {
    WT_ITEM value;
    uint64_t key;
    int near, error = begin(store);
    if (error) return failed("open_cursor", error);
    cursor->set_key(cursor, from);
    error = cursor->search_near(cursor, &near);
    if (!error && near < 0) error = cursor->next(cursor);
    while (!error && count > 0) {
        error = cursor->get_key(cursor, &key);
        if (!error) error = cursor->get_value(cursor, &value);
        if (error) break;
        look(context, key, value.data, value.size);
        count--;
        error = cursor->next(cursor);
    }
    int ended = cursor->reset(cursor);
    return error == WT_NOTFOUND ? NULL : failed("search_near", error ? error : ended);
}

const char *kv_close(struct store *store) {
    return failed("close", store->connection->close(store->connection, NULL));
}
#endif
