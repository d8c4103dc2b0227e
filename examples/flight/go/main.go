// Arrow Flight from Go: insert rows, delete rows in a transaction, and move rows between two tables atomically.
//
//	penstock serve --dev --workspace lake &
//	go run . grpc://127.0.0.1:8815
//
// PENSTOCK_TOKEN holds the token for a server that requires one; grpc+tls:// in the address selects TLS.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

const schemaName, events, archive = "analytics", "events", "archive"

var columns = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "kind", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "value", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
}, nil)

// JSON is the type of commands, tickets and action bodies.
type JSON map[string]any

func main() {
	address := "grpc://127.0.0.1:8815"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if err := run(address); err != nil {
		fmt.Fprintln(os.Stderr, err) // the status code and message of the server
		os.Exit(1)
	}
}

func run(address string) error {
	client, err := connect(address)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	if token := os.Getenv("PENSTOCK_TOKEN"); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	for _, table := range []string{events, archive} {
		if err := makeTable(ctx, client, table); err != nil {
			return err
		}
	}
	inserted, err := insert(ctx, client, events, fourRows())
	if err != nil {
		return err
	}
	fmt.Printf("inserted %d rows\n", inserted)
	if err := deleteNoise(ctx, client); err != nil {
		return err
	}
	return moveOpen(ctx, client)
}

// deleteNoise deletes rows in a transaction. A read with rowid returns the row ids, which identify the rows.
func deleteNoise(ctx context.Context, client flight.Client) error {
	_, noise, err := read(ctx, client, events, JSON{"filter": "kind = 'noise'", "rowid": true})
	if err != nil {
		return err
	}
	err = inTransaction(ctx, client, func(tx context.Context) error {
		deleted, err := deleteRows(tx, client, events, noise)
		if err != nil {
			return err
		}
		fmt.Printf("deleted %d rows, which other clients still see\n", deleted)
		others, err := count(ctx, client, events)
		fmt.Printf("other clients see %d rows\n", others)
		return err
	})
	if err != nil {
		return err
	}
	all, err := count(ctx, client, events)
	fmt.Printf("committed: all clients see %d rows\n", all)
	return err
}

// moveOpen moves rows from one table to the other. No client ever sees them in both tables, or in neither.
func moveOpen(ctx context.Context, client flight.Client) error {
	moved := 0
	err := inTransaction(ctx, client, func(tx context.Context) error {
		rows, ids, err := read(tx, client, events, JSON{"filter": "kind = 'open'", "rowid": true})
		if err != nil {
			return err
		}
		moved = len(ids)
		if _, err := insert(tx, client, archive, rows); err != nil {
			return err
		}
		_, err = deleteRows(tx, client, events, ids)
		return err
	})
	if err != nil {
		return err
	}
	left, err := count(ctx, client, events)
	if err != nil {
		return err
	}
	kept, err := count(ctx, client, archive)
	fmt.Printf("moved %d rows: %d left, %d in the archive\n", moved, left, kept)
	return err
}

// inTransaction commits the calls of the block, or rolls them back. A header assigns a call to the transaction.
func inTransaction(ctx context.Context, client flight.Client, block func(tx context.Context) error) error {
	var begun struct {
		ID string `json:"transaction_id"`
	}
	if err := act(ctx, client, "create_transaction", nil, &begun); err != nil {
		return err
	}
	named := JSON{"transaction_id": begun.ID}
	if err := block(metadata.AppendToOutgoingContext(ctx, "x-transaction-id", begun.ID)); err != nil {
		return errors.Join(err, act(ctx, client, "rollback_transaction", named, nil))
	}
	return act(ctx, client, "commit_transaction", named, nil) // ABORTED: another writer committed first; start again
}

// insert sends rows as one write. They are durable when the response arrives.
func insert(ctx context.Context, client flight.Client, table string, rows []arrow.RecordBatch) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an unfinished stream keeps its slot on the server
	stream, err := client.DoPut(ctx)
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, batch := range rows {
		total += batch.NumRows()
	}
	command, err := json.Marshal(JSON{
		"operation": "insert", "schema_name": schemaName, "table_name": table,
		// An interrupted stream can look like a finished one. With the count, it is never committed.
		"expected_rows": total,
	})
	if err != nil {
		return 0, err
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(columns))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command})
	for _, batch := range rows {
		// io.EOF: the server has ended the call; the next receive returns its error.
		if err := writer.Write(batch); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
	}
	if err := writer.Close(); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if err := stream.CloseSend(); err != nil {
		return 0, err
	}
	result, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	var answer struct {
		AffectedRows int64 `msgpack:"affected_rows"`
	}
	err = msgpack.Unmarshal(result.AppMetadata, &answer)
	return answer.AffectedRows, err
}

func deleteRows(ctx context.Context, client flight.Client, table string, ids []int64) (int64, error) {
	var answer struct {
		AffectedRows int64 `json:"affected_rows"`
	}
	err := act(ctx, client, "delete", JSON{"schema_name": schemaName, "table_name": table, "row_ids": ids}, &answer)
	return answer.AffectedRows, err
}

// read returns a table's rows, with their ids as the last column if requested.
func read(ctx context.Context, client flight.Client, table string, asked JSON) ([]arrow.RecordBatch, []int64, error) {
	ticket := JSON{"schema_name": schemaName, "table_name": table}
	for name, value := range asked {
		ticket[name] = value
	}
	coded, err := json.Marshal(ticket)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.DoGet(ctx, &flight.Ticket{Ticket: coded})
	if err != nil {
		return nil, nil, err
	}
	reader, err := flight.NewRecordReader(stream)
	if err != nil {
		return nil, nil, err
	}
	defer reader.Release()
	var rows []arrow.RecordBatch
	var ids []int64
	for reader.Next() {
		batch := reader.RecordBatch()
		width := int(batch.NumCols())
		if ticket["rowid"] == true {
			width--
			ids = append(ids, batch.Column(width).(*array.Int64).Int64Values()...)
		}
		rows = append(rows, array.NewRecordBatch(columns, batch.Columns()[:width], batch.NumRows()))
	}
	return rows, ids, reader.Err()
}

func count(ctx context.Context, client flight.Client, table string) (int64, error) {
	rows, _, err := read(ctx, client, table, nil)
	total := int64(0)
	for _, batch := range rows {
		total += batch.NumRows()
	}
	return total, err
}

// makeTable creates a table if it does not exist.
func makeTable(ctx context.Context, client flight.Client, table string) error {
	var there struct {
		Tables []struct {
			Schema string `json:"schema_name"`
			Table  string `json:"table_name"`
		} `json:"tables"`
	}
	if err := act(ctx, client, "list_tables", nil, &there); err != nil {
		return err
	}
	for _, each := range there.Tables {
		if each.Schema == schemaName && each.Table == table {
			return nil
		}
	}
	body := JSON{
		"schema_name": schemaName, "table_name": table,
		"arrow_schema": flight.SerializeSchema(columns, memory.DefaultAllocator), // bytes are base64 in Go's JSON
	}
	return act(ctx, client, "create_table", body, nil)
}

// act sends an action and decodes its result into `answer`, unless that is nil.
func act(ctx context.Context, client flight.Client, name string, body JSON, answer any) error {
	var coded []byte
	if body != nil {
		var err error
		if coded, err = json.Marshal(body); err != nil {
			return err
		}
	}
	stream, err := client.DoAction(ctx, &flight.Action{Type: name, Body: coded})
	if err != nil {
		return err
	}
	result, err := stream.Recv()
	if err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) { // each action has one result
		return errors.Join(err, fmt.Errorf("%s did not end after its answer", name))
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(result.Body, answer)
}

func connect(address string) (flight.Client, error) {
	scheme, place, _ := strings.Cut(address, "://")
	how := insecure.NewCredentials()
	if scheme == "grpc+tls" {
		how = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	return flight.NewClientWithMiddleware(place, nil, nil, grpc.WithTransportCredentials(how))
}

func fourRows() []arrow.RecordBatch {
	build := array.NewRecordBuilder(memory.DefaultAllocator, columns)
	defer build.Release()
	build.Field(0).(*array.Int64Builder).AppendValues([]int64{1, 2, 3, 4}, nil)
	build.Field(1).(*array.StringBuilder).AppendValues([]string{"open", "close", "open", "noise"}, nil)
	build.Field(2).(*array.Float64Builder).AppendValues([]float64{0.5, 1.5, 2.5, 9.0}, nil)
	return []arrow.RecordBatch{build.NewRecordBatch()}
}
