/*
 * A file is read in batches of rows, in their order, so memory holds the pages that a batch lies
 * in. Checksums of pages, where a file has them, are verified.
 */
#include <memory>
#include <stdexcept>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/memory.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <ctitan/error.h>

#include "json.h"
#include "rows.h"

static const int BATCH = 1024; /* rows that are in memory together */

namespace
{
struct table {
    std::unique_ptr<parquet::arrow::FileReader> file;
    std::shared_ptr<arrow::Schema> schema;
    std::vector<int> columns; /* leaves of the fields that are read */
};

void must(const arrow::Status &status)
{
    if (!status.ok())
        throw std::runtime_error(status.ToString());
}

template <typename T> T must(arrow::Result<T> &&result)
{
    must(result.status());
    return std::move(result).ValueUnsafe();
}

table open(const struct ct_reading &reading)
{
    auto buffer = std::make_shared<arrow::Buffer>(static_cast<const uint8_t *>(reading.data),
                                                  static_cast<int64_t>(reading.bytes));
    parquet::ReaderProperties properties;
    parquet::arrow::FileReaderBuilder builder;
    table t;

    properties.set_page_checksum_verification(true);
    must(builder.Open(std::make_shared<arrow::io::BufferReader>(buffer), properties));
    builder.properties(parquet::ArrowReaderProperties(false)); /* in this thread */
    must(builder.Build(&t.file));
    t.file->set_batch_size(BATCH);
    must(t.file->GetSchema(&t.schema));
    return t;
}

bool is_read(const struct ct_reading &reading, const std::string &name)
{
    if (!reading.fields)
        return true;
    for (const char *const *field = reading.fields; *field; field++)
        if (name == *field)
            return true;
    return false;
}

/* The leaves of a column follow each other. */
int choose(const struct ct_reading &reading, table &t)
{
    const auto *leaves = t.file->parquet_reader()->metadata()->schema();
    std::string names;

    for (const auto &field : t.schema->fields()) {
        names += (names.empty() ? "" : ", ") + field->name();
        if (is_read(reading, field->name()) && !json_knows(*field->type()))
            return ct_fail(CT_ECONFIG,
                           "the column %s has the type %s: texts, numbers, truth values, lists "
                           "and structs are supported",
                           field->name().c_str(), field->type()->ToString().c_str());
    }
    for (int i = 0; i < leaves->num_columns(); i++)
        if (is_read(reading, leaves->GetColumnRoot(i)->name()))
            t.columns.push_back(i);
    if (t.columns.empty())
        return ct_fail(CT_ECONFIG, "it has none of the columns that are read; it has %s",
                       names.c_str());
    return 0;
}

void write_row(std::string &out, const arrow::RecordBatch &batch, int64_t row)
{
    out += '{';
    for (int i = 0; i < batch.num_columns(); i++) {
        if (i)
            out += ',';
        json_quote(out, batch.column_name(i));
        out += ':';
        json_write(out, *batch.column(i), row);
    }
    out += "}\n";
}

int take_batch(const struct ct_reading &reading, const arrow::RecordBatch &batch, int64_t row)
{
    struct ct_reader_text text = {};
    std::string lines;

    must(batch.ValidateFull());
    for (int64_t i = 0; i < batch.num_rows(); i++)
        write_row(lines, batch, i);
    text.size = sizeof(text);
    text.data = lines.data();
    text.bytes = lines.size();
    text.lines = true;
    text.first = row + 1;
    return reading.take(reading.context, &text);
}

/* Group by group: the library makes no nested values of two together. */
int read_rows(const struct ct_reading &reading, table &t, int64_t &row)
{
    std::shared_ptr<arrow::RecordBatch> batch;
    int rc = 0;

    for (int group = 0; group < t.file->num_row_groups(); group++) {
        const auto batches = must(t.file->GetRecordBatchReader({group}, t.columns));

        for (must(batches->ReadNext(&batch)); batch; must(batches->ReadNext(&batch))) {
            rc = take_batch(reading, *batch, row);
            if (rc < 0)
                return rc;
            row += batch->num_rows();
        }
    }
    if (row != t.file->parquet_reader()->metadata()->num_rows())
        throw std::runtime_error("rows are missing");
    return 0;
}
} // namespace

int rows_read(const struct ct_reading *reading)
{
    int64_t row = 0;

    try {
        table t = open(*reading);
        const int rc = choose(*reading, t);

        return rc < 0 ? rc : read_rows(*reading, t, row);
    } catch (const std::bad_alloc &) {
        return ct_fail(CT_ENOMEM, "the Parquet file, behind row %lld", static_cast<long long>(row));
    } catch (const std::exception &e) {
        return ct_fail(CT_ECONFIG, "the Parquet file is damaged behind row %lld: %s",
                       static_cast<long long>(row), e.what());
    }
}
