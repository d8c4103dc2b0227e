"""Store named entries of a tenant that are replaced by version: result schemas, queries and pipelines.

`VersionedStore` holds the newest revision of each entry: find and lock it, replace it if it has the version that was
read, search, delete, undelete. `RevisionStore` also keeps every revision of entries that have a lifecycle. A subclass converts
entries to rows and adds its own rules.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, FromClause, Row, Select, Table, Update, bindparam, literal, select, update
from sqlalchemy.exc import IntegrityError

from penstock.catalog import odata_sql, search_statements
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.odata_sql import Columns, FoldedText
from penstock.catalog.search_statements import PreparedSearch, SortKey
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.core.odata import FieldKind, Fields, Node, OrderBy, QueryOptions
from penstock.core.paging import SearchPage
from penstock.core.registry.lifecycle import LifecycleEntry
from penstock.core.registry.revisions import RegistryEntry
from penstock.core.registry.schema_entry import name_key
from penstock.errors import AlreadyExists, Conflict, NotFound, Unsupported

E = TypeVar("E", bound=RegistryEntry)
L = TypeVar("L", bound=LifecycleEntry)
R = TypeVar("R")

_FIXED_COLUMNS = {"tenant_id", "id", "type_id", "created_at", "created_by", "deleted_at"}  # not set by a replacement


class VersionedStore(ABC, Generic[E]):
    """The newest revisions of the entries of one table. Names are unique among the entries that are not deleted."""

    def __init__(
        self,
        entry_type: str,
        table: Table,
        fields: Fields,
        *,
        selective: Sequence[str],
        reserves_name: ColumnElement[bool] | None = None,
        large_columns: Mapping[str, Any] | None = None,
    ) -> None:
        """Build the statements of a table.

        Args:
            entry_type: schema, query or pipeline: part of error reasons, of audit actions and of the members for ids
            table: the table of the entries
            fields: fields to filter and order by
            selective: fields with values that few entries share
            reserves_name: condition of the rows whose names are taken; None: all rows
            large_columns: columns that a search reads only if `$select` names them, with the value that replaces them
        """
        self.entry_type, self.fields = entry_type, fields
        self._id_name = f"{entry_type}_id"
        self._table, self._selective, self._large_columns = table, selective, large_columns or {}
        c = table.c
        entry = (tenant_filter(table), c.deleted_at.is_(None), c.id == bindparam("entry"))
        self._all = select(table).where(tenant_filter(table), c.deleted_at.is_(None))
        self._find = select(table).where(*entry)
        self._find_for_update = self._find.with_for_update()
        self._find_deleted_or_live = (
            select(table).where(tenant_filter(table), c.id == bindparam("entry")).with_for_update()
        )
        self._by_name = self._all.where(c.name_key == bindparam("key"))
        other_with_name = self._by_name.with_only_columns(c.id).where(c.id != bindparam("entry"))
        self._other_with_name = other_with_name if reserves_name is None else other_with_name.where(reserves_name)
        new_values: dict[str, Any] = {
            column.name: bindparam(f"new_{column.name}") for column in c if column.name not in _FIXED_COLUMNS
        }
        self._replace = update(table).where(*entry, c.version == bindparam("before")).values(new_values)
        self._delete = update(table).where(*entry).values(deleted_at=bindparam("now"))
        self._undelete = (
            update(table)
            .where(tenant_filter(table), c.id == bindparam("entry"), c.version == bindparam("before"))
            .values({**new_values, "deleted_at": None})
        )
        self._texts = folded_texts(table)
        self._columns = self._search_columns(table)

    def insert(self, tx: CatalogTransaction, entry: E) -> None:
        """Store a new entry.

        Raises:
            AlreadyExists: the name is taken
        """
        self._insert_row(tx, entry)
        self._audit(tx, "create", entry)

    def find(self, tx: CatalogTransaction, id: UUID) -> E:
        """Return an entry by id."""
        return self._select_one(tx, self._find, id)

    def find_for_update(self, tx: CatalogTransaction, id: UUID) -> E:
        """Return an entry and lock it against changes until the transaction ends."""
        return self._select_one(tx, self._find_for_update, id)

    def replace(self, tx: CatalogTransaction, before: E, after: E) -> None:
        """Replace the revision that was read by the next one.

        Raises:
            AlreadyExists: the name is taken
            Conflict: the entry has a newer revision
        """
        self._replace_row(tx, before, after)
        self._audit(tx, "update", after)

    def remove(self, tx: CatalogTransaction, entry: E) -> None:
        """Delete an entry; rows that belong to it stay. The caller has locked it with `find_for_update`."""
        tx.execute(self._delete, entry=entry.id, now=tx.now)
        self._audit(tx, "delete", entry)

    def find_deleted_for_update(self, tx: CatalogTransaction, id: UUID) -> E:
        """Return a deleted entry and lock it against changes until the transaction ends.

        Raises:
            NotFound: no entry has this id, deleted or not
            Unsupported: the entry is not deleted
        """
        row = tx.first(self._find_deleted_or_live, entry=id)
        if row is None:
            raise self.not_found(id)
        if row.deleted_at is None:
            ids: dict[str, Any] = {self._id_name: str(id)}
            raise Unsupported(f"{self.entry_type}_not_deleted", **ids, current_version=row.version)
        return self.from_row(row)

    def undelete(self, tx: CatalogTransaction, before: E, after: E) -> None:
        """Store the next revision of a deleted entry, which is then no longer deleted.

        Args:
            tx: the transaction
            before: the deleted entry, locked with `find_deleted_for_update`
            after: the next revision

        Raises:
            AlreadyExists: another entry has taken the name
        """
        self._undelete_row(tx, before, after)
        self._audit(tx, "undelete", after)

    def search(self, tx: CatalogTransaction, options: QueryOptions) -> SearchPage[E]:
        """Return a page of the tenant's entries, newest first unless another order is requested."""
        nulls = search_statements.null_positions(options)
        omitted = self._omitted_columns(options)
        search = self.prepare_search(options.filter, options.orderby, options.search, nulls, omitted)
        return search_statements.search_page(tx, search, options, self.from_row)

    def prepare_search(
        self,
        condition: Node | None,
        orderby: tuple[OrderBy, ...],
        words: tuple[str, ...],
        nulls: tuple[bool, ...] | None,
        omitted: tuple[str, ...] = (),
    ) -> PreparedSearch:
        """Return the statements of a search, without the limits of a page.

        Args:
            condition: the filter
            orderby: the order
            words: words of `$search`
            nulls: from `null_positions`
            omitted: large columns that are not read
        """
        conditions = odata_sql.conditions(condition, words, self._columns, list(self._texts.values()))
        few = odata_sql.is_selective(condition, self._selective)
        keys = self._sort_keys(self._table, self._columns, orderby, few=few)
        return search_statements.prepare_search(self._select_without(omitted).where(*conditions), keys, nulls)

    def _omitted_columns(self, options: QueryOptions) -> tuple[str, ...]:
        if options.select is None:
            return ()
        return tuple(name for name in self._large_columns if name not in options.select)

    def _select_without(self, omitted: tuple[str, ...]) -> Select[Any]:
        if not omitted:
            return self._all
        return self._all.with_only_columns(
            *(
                literal(self._large_columns[column.name], column.type).label(column.name)
                if column.name in omitted
                else column
                for column in self._table.c
            )
        )

    def version_conflict(self, current: E) -> Conflict:
        """Return the error for a change that is based on an older revision."""
        ids: dict[str, Any] = {self._id_name: str(current.id)}
        return Conflict(
            f"{self.entry_type}_changed", {"version": current.version}, **ids, current_version=current.version
        )

    def not_found(self, key: UUID | str) -> NotFound:
        """Return the error for a key that no entry has."""
        return NotFound(f"{self.entry_type}_not_found", **{self._id_name: str(key)})

    @abstractmethod
    def content(self, entry: E) -> dict[str, Any]:
        """Return the columns with the content of an entry, its name among them."""

    @abstractmethod
    def from_row(self, row: Row[Any]) -> E:
        """Return the entry of a row."""

    def _fixed_values(self, entry: E) -> dict[str, Any]:
        """Return the columns that never change."""
        return {"id": entry.id, "created_at": entry.created_at, "created_by": entry.created_by}

    def _values(self, entry: E) -> dict[str, Any]:
        """Return the columns that a replacement sets."""
        content = self.content(entry)
        folded = {f"{name}_lower": content[name] and content[name].lower() for name in self._texts}
        folded |= {f"{name}_upper": content[name] and content[name].upper() for name in self._texts}
        audit = {"version": entry.version, "updated_at": entry.updated_at, "updated_by": entry.updated_by}
        return {**content, **folded, "name_key": name_key(content["name"]), **audit}

    def _search_columns(self, table: FromClause) -> Columns:
        """Map the searchable fields to the columns of a table."""
        plain = {name: table.c[name] for name, kind in self.fields.items() if isinstance(kind, FieldKind)}
        return {**plain, **folded_texts(table)}

    def _sort_keys(
        self, table: FromClause, columns: Columns, orderby: tuple[OrderBy, ...], *, few: bool
    ) -> tuple[SortKey, ...]:
        """Return the sort key of the rows of a table. With `few`, the rows are not read in the order of an index."""
        if orderby:
            return search_statements.sort_keys(orderby, columns, [table.c.id])
        return search_statements.newest_first(table.c.created_at, table.c.id, few=few)

    def _has_reserved_name(self, _entry: E) -> bool:
        """Return whether no other entry may have the name of this one."""
        return True

    def _insert_row(self, tx: CatalogTransaction, entry: E) -> None:
        values = self._values(entry)
        if not tx.insert_if_absent(self._table, **self._fixed_values(entry), **values):
            raise self._name_taken(values)

    def _replace_row(self, tx: CatalogTransaction, before: E, after: E) -> None:
        if self._update_row(tx, self._replace, before, after, "") != 1:
            raise self.version_conflict(self.find(tx, before.id))

    def _undelete_row(self, tx: CatalogTransaction, before: E, after: E) -> None:
        self._update_row(tx, self._undelete, before, after, ".undelete")

    def _update_row(self, tx: CatalogTransaction, statement: Update, before: E, after: E, variant: str) -> int:
        """Write a revision over the one before it. Return the number of rows; `variant` selects the message for a taken name."""
        values = self._values(after)
        other = tx.first(self._other_with_name, key=values["name_key"], entry=before.id)
        if other and self._has_reserved_name(after):
            raise self._name_taken(values, variant)
        try:
            new = {f"new_{name}": value for name, value in values.items()}
            return tx.execute(statement, entry=before.id, before=before.version, **new)
        except IntegrityError:  # a concurrent transaction took the name
            raise self._name_taken(values, variant) from None

    def _select_one(
        self,
        tx: CatalogTransaction,
        statement: Select[Any],
        id: UUID,
        from_row: Callable[[Row[Any]], E] | None = None,
    ) -> E:
        if row := tx.first(statement, entry=id):
            return (from_row or self.from_row)(row)
        raise self.not_found(id)

    def _name_taken(self, values: dict[str, Any], variant: str = "") -> AlreadyExists:
        name = values["name"]
        return AlreadyExists(f"{self.entry_type}_name_taken{variant}", {"stripped": name.strip()}, name=name)

    def _audit(self, tx: CatalogTransaction, action: str, entry: E, **details: Any) -> None:
        tx.audit(f"{self.entry_type}.{action}", {self._id_name: entry.id, "version": entry.version, **details})


class RevisionStore(VersionedStore[L], Generic[L, R]):
    """Entries with a lifecycle, and all their revisions in a second table."""

    def __init__(
        self,
        entry_type: str,
        table: Table,
        revisions: Table,
        fields: Fields,
        *,
        selective: Sequence[str],
        reserves_name: ColumnElement[bool] | None = None,
        large_columns: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            entry_type, table, fields, selective=selective, reserves_name=reserves_name, large_columns=large_columns
        )
        v = revisions.c
        self._insert_version = insert_for_tenant(revisions)
        of_entry = (
            select(revisions)
            .where(tenant_filter(revisions), v[self._id_name] == bindparam("entry"))
            .order_by(v.version.desc())
        )
        self._versions_before = of_entry.where(v.version < bindparam("before")).limit(bindparam("limit"))
        self._version = of_entry.where(v.version == bindparam("number"))

    def insert(self, tx: CatalogTransaction, entry: L) -> None:
        """Store a new entry and its first revision."""
        self._insert_row(tx, entry)
        self._insert_revision(tx, entry, "create", None)

    def replace(
        self, tx: CatalogTransaction, before: L, after: L, action: str = "update", reason: str | None = None
    ) -> None:
        """Replace the revision that was read by the next one, and keep both.

        Args:
            tx: the transaction
            before: the revision that was read
            after: the next revision
            action: update, or the verb of a transition
            reason: the reason of the change
        """
        self._replace_row(tx, before, after)
        self._insert_revision(tx, after, action, reason)

    def undelete(self, tx: CatalogTransaction, before: L, after: L) -> None:
        """Store the next revision of a deleted entry as `VersionedStore.undelete` does, and keep it."""
        self._undelete_row(tx, before, after)
        self._insert_revision(tx, after, "undelete", None)

    def versions(self, tx: CatalogTransaction, id: UUID, *, before: int, limit: int) -> list[R]:
        """Return revisions below `before`, newest first."""
        rows = tx.all(self._versions_before, entry=id, before=before, limit=limit)
        return [self.revision_from_row(row) for row in rows]

    def version(self, tx: CatalogTransaction, id: UUID, number: int) -> R:
        """Return one revision of an entry."""
        if row := tx.first(self._version, entry=id, number=number):
            return self.revision_from_row(row)
        ids: dict[str, Any] = {self._id_name: str(id)}
        raise NotFound(f"version_not_found.{self.entry_type}", {"number": number}, **ids, version=number)

    @abstractmethod
    def revision_from_row(self, row: Row[Any]) -> R:
        """Return the revision of a row."""

    def _values(self, entry: L) -> dict[str, Any]:
        return {**super()._values(entry), "state_changed_at": entry.state_changed_at}

    def _insert_revision(self, tx: CatalogTransaction, entry: L, action: str, reason: str | None) -> None:
        tx.execute(
            self._insert_version,
            **{self._id_name: entry.id},
            version=entry.version,
            **self.content(entry),
            change=action,
            reason=reason,
            changed_at=entry.updated_at,
            changed_by=entry.updated_by,
            author=tx.caller.name[:320],
        )
        self._audit(tx, action, entry, reason=reason)


def folded_texts(table: FromClause) -> dict[str, FoldedText]:
    """Return the text columns that have a lower-case and an upper-case column beside them."""
    c = table.c
    names = [name.removesuffix("_lower") for name in c.keys() if name.endswith("_lower")]  # noqa: SIM118
    return {name: FoldedText(c[name], c[f"{name}_lower"], c[f"{name}_upper"]) for name in names}
