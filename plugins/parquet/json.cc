/*
 * Values of Arrow as JSON: texts, numbers, truth values, lists, and structs as objects.
 */
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "json.h"

using arrow::Type;

bool json_knows(const arrow::DataType &type)
{
    switch (type.id()) {
    case Type::NA:
    case Type::BOOL:
    case Type::STRING:
    case Type::LARGE_STRING:
    case Type::DOUBLE:
    case Type::FLOAT:
        return true;
    case Type::DICTIONARY:
        return json_knows(*static_cast<const arrow::DictionaryType &>(type).value_type());
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
    case Type::STRUCT:
        for (const auto &field : type.fields())
            if (!json_knows(*field->type()))
                return false;
        return true;
    default:
        return arrow::is_integer(type.id());
    }
}

void json_quote(std::string &out, std::string_view text)
{
    static const char digits[] = "0123456789abcdef";

    out += '"';
    for (const char c : text)
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            out += "\\u00";
            out += digits[c / 16];
            out += digits[c % 16];
        } else {
            out += c;
        }
    out += '"';
}

template <typename Array>
static void write_number(std::string &out, const arrow::Array &array, int64_t row)
{
    const auto value = static_cast<const Array &>(array).Value(row);
    char text[64];
    const auto end = std::to_chars(text, text + sizeof(text), value).ptr;

    out.append(text, end);
}

/* As Python's json writes them, which readers of JSON lines here know. */
template <typename Array>
static void write_real(std::string &out, const arrow::Array &array, int64_t row)
{
    const double value = static_cast<const Array &>(array).Value(row);

    if (std::isnan(value))
        out += "NaN";
    else if (std::isinf(value))
        out += value < 0 ? "-Infinity" : "Infinity";
    else
        write_number<Array>(out, array, row);
}

static void write_list(std::string &out, const arrow::Array &values, int64_t from, int64_t to)
{
    out += '[';
    for (int64_t i = from; i < to; i++) {
        if (i > from)
            out += ',';
        json_write(out, values, i);
    }
    out += ']';
}

template <typename List>
static void write_list_of(std::string &out, const arrow::Array &array, int64_t row)
{
    const auto &list = static_cast<const List &>(array);

    write_list(out, *list.values(), list.value_offset(row),
               list.value_offset(row) + list.value_length(row));
}

static void write_object(std::string &out, const arrow::Array &array, int64_t row)
{
    const auto &object = static_cast<const arrow::StructArray &>(array);

    out += '{';
    for (int i = 0; i < object.num_fields(); i++) {
        if (i)
            out += ',';
        json_quote(out, object.type()->field(i)->name());
        out += ':';
        json_write(out, *object.field(i), row);
    }
    out += '}';
}

void json_write(std::string &out, const arrow::Array &array, int64_t row)
{
    if (array.IsNull(row)) {
        out += "null";
        return;
    }
    switch (array.type_id()) {
    case Type::BOOL:
        out += static_cast<const arrow::BooleanArray &>(array).Value(row) ? "true" : "false";
        return;
    case Type::STRING:
        return json_quote(out, static_cast<const arrow::StringArray &>(array).GetView(row));
    case Type::LARGE_STRING:
        return json_quote(out, static_cast<const arrow::LargeStringArray &>(array).GetView(row));
    case Type::INT8:
        return write_number<arrow::Int8Array>(out, array, row);
    case Type::UINT8:
        return write_number<arrow::UInt8Array>(out, array, row);
    case Type::INT16:
        return write_number<arrow::Int16Array>(out, array, row);
    case Type::UINT16:
        return write_number<arrow::UInt16Array>(out, array, row);
    case Type::INT32:
        return write_number<arrow::Int32Array>(out, array, row);
    case Type::UINT32:
        return write_number<arrow::UInt32Array>(out, array, row);
    case Type::INT64:
        return write_number<arrow::Int64Array>(out, array, row);
    case Type::UINT64:
        return write_number<arrow::UInt64Array>(out, array, row);
    case Type::FLOAT:
        return write_real<arrow::FloatArray>(out, array, row);
    case Type::DOUBLE:
        return write_real<arrow::DoubleArray>(out, array, row);
    case Type::LIST:
        return write_list_of<arrow::ListArray>(out, array, row);
    case Type::LARGE_LIST:
        return write_list_of<arrow::LargeListArray>(out, array, row);
    case Type::FIXED_SIZE_LIST:
        return write_list_of<arrow::FixedSizeListArray>(out, array, row);
    case Type::STRUCT:
        return write_object(out, array, row);
    case Type::DICTIONARY: {
        const auto &words = static_cast<const arrow::DictionaryArray &>(array);

        return json_write(out, *words.dictionary(), words.GetValueIndex(row));
    }
    default:
        throw std::runtime_error("a value of type " + array.type()->ToString());
    }
}
