"""Housekeeping: removed and compacted landing files, retired revisions."""

from alembic import op
import sqlalchemy as sa

revision = '0004'
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column('landing_files', sa.Column('compacted_at', sa.DateTime(timezone=True), nullable=True, comment='When its rows were merged into a file of the day'))
    op.add_column('landing_files', sa.Column('removed_at', sa.DateTime(timezone=True), nullable=True, comment='From then on its rows are read from the registered revisions; the file is deleted after it'))
    op.alter_column('landing_files', 'path', existing_type=sa.String(), existing_nullable=False, comment="Path below the lake's URI; a compacted file holds many micro-batches", existing_comment="Path below the lake's URI")
    op.alter_column('landing_files', 'rows', existing_type=sa.BigInteger(), existing_nullable=False, comment='Rows of the micro-batch in the file', existing_comment='Rows in the file')
    op.create_table_comment('landing_files', 'What each committed micro-batch has in which file of landing or quarantine', existing_comment='Files of committed micro-batches: landing and quarantine')
    op.create_index('ix_landing_files_path', 'landing_files', ['path'], unique=False)
    op.create_index('ix_landing_files_loose', 'landing_files', ['micro_batch_id'], unique=False, postgresql_where=sa.text('removed_at IS NULL AND compacted_at IS NULL'))
    op.create_index('ix_micro_batch_ranges_span', 'micro_batch_ranges', [sa.text('int8range(from_offset, until_offset)')], unique=False, postgresql_using='gist')
    op.create_index('ix_interval_ranges_span', 'interval_ranges', [sa.text('int8range(from_offset, until_offset)')], unique=False, postgresql_using='gist')
    op.add_column('revisions', sa.Column('retired_at', sa.DateTime(timezone=True), nullable=True, comment='When it was superseded, rejected or discarded'))
    op.alter_column('revisions', 'state', existing_type=sa.String(), existing_nullable=False, comment='built, validated, registering, registered, superseded, rejected, discarded or removed', existing_comment='built, validated, registered, superseded, rejected or discarded')
    op.alter_column('revisions', 'files', existing_nullable=False, comment='File name to rows, bytes, sha256 and offset statistics', existing_comment='File name to rows, bytes and offset statistics')


def downgrade() -> None:
    """Take back."""
    op.drop_column('revisions', 'retired_at')
    op.drop_index('ix_interval_ranges_span', table_name='interval_ranges')
    op.drop_index('ix_micro_batch_ranges_span', table_name='micro_batch_ranges')
    op.drop_index('ix_landing_files_loose', table_name='landing_files')
    op.drop_index('ix_landing_files_path', table_name='landing_files')
    op.drop_column('landing_files', 'removed_at')
    op.drop_column('landing_files', 'compacted_at')
